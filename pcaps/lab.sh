# shellcheck shell=bash
# The network that record.sh records in: nodes, pods and the world outside, each one a
# network namespace. Sourced by record.sh; makes nothing by itself.
#
#        pods of node-1                   pods of node-2
#     eth0  eth0  eth0                       eth0
#       |     |     |                          |
#      v-a   v-b   v-c                        v-d
#   [ bhrec-node-1: br0 ]              [ bhrec-node-2: br0 ]
#              | uplink                     uplink |
#              `-------- [ bhrec-router ] ---------'
#                               |
#                       [ bhrec-internet ]  192.0.2.10, 192.0.2.200
#
# Every address and MAC follows from the node's and the pod's number, so that two recordings
# differ only in times, TCP sequence numbers and ephemeral ports.
# Everything has the prefix bhrec-, and lab_destroy removes all that has it.

readonly LAB_PREFIX=bhrec-

# Dual stack if "yes". Off by default: IPv6 chatter (DAD, MLD) would only blow up the IPv4 cases.
LAB_IPV6=no
# Long-running programs (servers, tcpdump) that this lab started.
LAB_PIDS=()
# Captures that are running: "pid:stderr file".
LAB_CAPTURES=()
# Scratch folder: configurations, logs, captures that are still to be merged.
LAB_TMP=

die() {
    printf 'record.sh: %s\n' "$*" >&2
    exit 1
}

# within NS COMMAND...: run a command in a namespace of the lab.
within() {
    local ns=$1
    shift
    ip netns exec "$LAB_PREFIX$ns" "$@"
}

# fails COMMAND...: the command must not succeed; this is how a denied client is recorded.
fails() {
    if "$@" >>"$LAB_TMP/denied.log" 2>&1; then
        die "this was meant to be denied, but succeeded: $*"
    fi
}

# serve NS COMMAND...: start a server, remember its pid.
serve() {
    local ns=$1
    shift
    # Not through within: $! must be the server itself, not a subshell around it.
    ip netns exec "$LAB_PREFIX$ns" "$@" >>"$LAB_TMP/server-$ns.log" 2>&1 </dev/null &
    LAB_PIDS+=("$!")
    # So that bash does not report that it was killed.
    disown "$!"
}

# listening NS PORT: wait until something in the namespace listens on a TCP or UDP port.
listening() {
    local try
    for ((try = 0; try < 50; try++)); do
        if within "$1" ss -Hlntu | grep -Eq ":$2[[:space:]]"; then
            return 0
        fi
        sleep 0.1
    done
    cat "$LAB_TMP/server-$1.log" >&2
    die "nothing listens on port $2 in $1 after 5 s"
}

# plain_wire NS DEVICE: checksums and segments are made before the capture point, so that the
# capture holds what a wire would carry.
plain_wire() {
    within "$1" ethtool -K "$2" tx off rx off sg off tso off gso off gro off >/dev/null 2>&1
}

new_namespace() {
    ip netns add "$LAB_PREFIX$1"
    within "$1" sysctl -qw net.ipv6.conf.default.disable_ipv6=1 net.ipv6.conf.all.disable_ipv6=1
    within "$1" ip link set lo up
}

# enable_ipv6 NS DEVICE [SYSCTL...]: IPv6 on one device only; the host ends of the veths stay silent.
enable_ipv6() {
    local ns=$1 device=$2 setting
    shift 2
    [[ $LAB_IPV6 == yes ]] || return 0
    for setting in "$@" disable_ipv6=0; do
        within "$ns" sysctl -qw "net.ipv6.conf.$device.$setting"
    done
}

# lab_node N: node-N with its bridge. The node talks to its pods from its InternalIP, 172.18.0.1N,
# which is what status.addresses of the Node says.
lab_node() {
    local n=$1 ns=node-$1
    new_namespace "$ns"
    within "$ns" sysctl -qw net.ipv4.ip_forward=1
    within "$ns" ip address add "172.18.0.1$n/32" dev lo
    within "$ns" ip link add br0 address "$(printf '02:00:00:00:%02x:01' "$n")" type bridge stp_state 0 mcast_snooping 0
    plain_wire "$ns" br0
    if [[ $LAB_IPV6 == yes ]]; then
        within "$ns" sysctl -qw net.ipv6.conf.all.disable_ipv6=0 net.ipv6.conf.all.forwarding=1
        enable_ipv6 "$ns" br0 accept_dad=0
        within "$ns" ip address add "fd00:10:244:$n::1/64" dev br0 nodad
    fi
    within "$ns" ip address add "10.244.$n.1/24" dev br0 noprefixroute
    within "$ns" ip link set br0 up
    within "$ns" ip route add "10.244.$n.0/24" dev br0 src "172.18.0.1$n"
}

# lab_pod N HOST NAME [SYSCTL...]: a pod of node-N with the address 10.244.N.HOST. The settings are
# of the pod's net.ipv6.conf.eth0; without any, the pod has no duplicate address detection.
lab_pod() {
    local n=$1 host=$2 name=$3 node=node-$1
    shift 3
    (($# > 0)) || set -- accept_dad=0 accept_ra=0 router_solicitations=0
    new_namespace "$name"
    ip link add "v-$name" netns "$LAB_PREFIX$node" address "$(printf '02:00:00:01:%02x:%02x' "$n" "$host")" \
        type veth peer name eth0 netns "$LAB_PREFIX$name" address "$(printf '02:00:00:00:%02x:%02x' "$n" "$host")"
    plain_wire "$node" "v-$name"
    plain_wire "$name" eth0
    within "$node" ip link set "v-$name" master br0 up
    within "$name" ip address add "10.244.$n.$host/24" dev eth0
    enable_ipv6 "$name" eth0 "$@"
    within "$name" ip link set eth0 up
    within "$name" ip route add default via "10.244.$n.1"
    if [[ $LAB_IPV6 == yes ]]; then
        within "$name" ip address add "$(printf 'fd00:10:244:%d::%x/64' "$n" "$host")" dev eth0
        within "$name" ip route add default via "fd00:10:244:$n::1"
    fi
}

# lab_router: the network between the nodes, and behind a link with a smaller MTU the "internet".
lab_router() {
    new_namespace router
    new_namespace internet
    within router sysctl -qw net.ipv4.ip_forward=1
    within router ip link add br0 address 02:00:00:02:00:01 type bridge stp_state 0 mcast_snooping 0
    plain_wire router br0
    within router ip address add 172.18.0.1/24 dev br0
    within router ip link set br0 up
    ip link add eth1 netns "${LAB_PREFIX}router" address 02:00:00:02:01:01 mtu 1400 \
        type veth peer name eth0 netns "${LAB_PREFIX}internet" address 02:00:00:02:01:0a mtu 1400
    plain_wire router eth1
    plain_wire internet eth0
    within router ip address add 192.0.2.1/24 dev eth1
    within router ip link set eth1 up
    within internet ip address add 192.0.2.10/24 dev eth0
    within internet ip address add 192.0.2.200/24 dev eth0
    within internet ip link set eth0 up
    within internet ip route add default via 192.0.2.1
}

# lab_uplink N: connects node-N to the router; needs lab_router.
lab_uplink() {
    local n=$1 ns=node-$1
    ip link add "up-$n" netns "${LAB_PREFIX}router" address "$(printf '02:00:00:03:00:%02x' "$n")" \
        type veth peer name uplink netns "$LAB_PREFIX$ns" address "$(printf '02:00:00:02:00:1%x' "$n")"
    plain_wire router "up-$n"
    plain_wire "$ns" uplink
    within router ip link set "up-$n" master br0 up
    within router ip route add "10.244.$n.0/24" via "172.18.0.1$n"
    within "$ns" ip address del "172.18.0.1$n/32" dev lo
    within "$ns" ip address add "172.18.0.1$n/24" dev uplink
    within "$ns" ip link set uplink up
    within "$ns" ip route replace "10.244.$n.0/24" dev br0 src "172.18.0.1$n"
    within "$ns" ip route add default via 172.18.0.1
}

# lab_deny NS MATCH...: the namespace ignores what matches (nftables). This stands for the policy while
# recording: it acts behind the capture point, so the capture shows how a denied client really behaves.
lab_deny() {
    local ns=$1
    shift
    within "$ns" nft -f - <<RULES
add table inet bhrec
add chain inet bhrec denied { type filter hook prerouting priority -500; }
add rule inet bhrec denied $* drop
RULES
}

# capture NS DEVICE FILE [TCPDUMP OPTION...]: start tcpdump and wait until it listens.
# A bridge device in promiscuous mode sees each bridged, routed-out and delivered frame exactly once.
capture() {
    local ns=$1 device=$2 file=$3 log try
    shift 3
    log=$(mktemp "$LAB_TMP/tcpdump.XXXXXX")
    ip netns exec "$LAB_PREFIX$ns" tcpdump -Z root -n -U --immediate-mode -i "$device" -w "$file" "$@" >/dev/null 2>"$log" &
    LAB_PIDS+=("$!")
    LAB_CAPTURES+=("$!:$log")
    for ((try = 0; try < 50; try++)); do
        grep -q 'listening on' "$log" && return 0
        sleep 0.1
    done
    cat "$log" >&2
    die "tcpdump does not listen on $device of $ns"
}

# captured: stop every tcpdump; a capture that lost a packet is not a fixture.
captured() {
    local entry pid log
    sleep 0.5
    for entry in "${LAB_CAPTURES[@]}"; do
        pid=${entry%%:*}
        log=${entry#*:}
        # Not SIGINT, which a shell makes its background programs ignore.
        kill -TERM "$pid"
        wait "$pid" || die "tcpdump failed: $(<"$log")"
        grep -q '^0 packets dropped by kernel' "$log" || die "tcpdump lost packets: $(<"$log")"
    done
    LAB_CAPTURES=()
}

# lab_destroy: end what runs, remove every namespace (and with it veths, bridges, rules).
lab_destroy() {
    local pid ns
    for pid in "${LAB_PIDS[@]}"; do
        kill "$pid" 2>/dev/null || true
    done
    # So that bash does not report captures that a failed recording left running.
    disown -a
    LAB_PIDS=()
    LAB_CAPTURES=()
    while read -r ns _; do
        [[ $ns == "$LAB_PREFIX"* ]] || continue
        # Servers may have left children (nginx workers, forked socats).
        for pid in $(ip netns pids "$ns"); do
            kill -KILL "$pid" 2>/dev/null || true
        done
        ip netns delete "$ns"
    done < <(ip netns list)
    if [[ -n $LAB_TMP ]]; then
        rm -rf "$LAB_TMP"
        LAB_TMP=
    fi
}
