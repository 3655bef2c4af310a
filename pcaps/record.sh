#!/usr/bin/env bash
# Records the captures of pcaps/ anew from real programs in network namespaces.
#
#     pcaps/record.sh [case...]        all cases without an argument
#
# Needs root and the Debian packages below. Makes namespaces with the prefix bhrec- and removes them
# at the end, also when something fails. Replaces <case>/in.pcap or in.pcapng, and only when all of the
# case went as its record_ function says; the state.yaml, README.md and node of a case are written by hand.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly HERE
# shellcheck source=lab.sh
source "$HERE/lab.sh"

readonly CASES=(redis-no-policy redis-policy redis-allow-any dns http icmp ipv6 fragments-sctp node-exit shop names)
# Body of the http case: about 200 KB, well over a hundred full segments.
readonly HTTP_BODY_BYTES=200000
# Larger than two Ethernet MTUs, so that a datagram has a first, a middle and a last fragment.
readonly DATAGRAM_BYTES=4000
# The user-space SCTP of libusrsctp speaks SCTP straight over IP, so no kernel module is needed.
readonly USRSCTP=/usr/lib/usrsctp

# Program (or file) and the Debian package that has it.
readonly PROGRAMS=(
    ip:iproute2 ethtool:ethtool nft:nftables tcpdump:tcpdump python3:python3 redis-server:redis-server
    redis-cli:redis-tools dnsmasq:dnsmasq-base dig:bind9-dnsutils nginx:nginx-light curl:curl
    ping:iputils-ping traceroute:traceroute socat:socat "$USRSCTP/client:libusrsctp-examples"
)

check_programs() {
    local entry missing=()
    for entry in "${PROGRAMS[@]}"; do
        command -v "${entry%%:*}" >/dev/null || missing+=("${entry##*:}")
    done
    if ((${#missing[@]} > 0)); then
        die "programs are missing; run: apt-get install -y --no-install-recommends ${missing[*]}"
    fi
}

# redis_lab: the four pods of the redis story, 10.244.1.2 to .5, and the server.
redis_lab() {
    lab_node 1
    lab_pod 1 2 db
    lab_pod 1 3 frontend
    lab_pod 1 4 backend1
    lab_pod 1 5 backend2
    serve db redis-server --bind 0.0.0.0 --protected-mode no --port 6379 --save '' --dir "$LAB_TMP"
    listening db 6379
}

redis_ping() {
    [[ $(within "$1" timeout 4 redis-cli -h 10.244.1.2 ping) == PONG ]]
}

record_redis-no-policy() {
    redis_lab
    capture node-1 br0 "$1/in.pcap"
    redis_ping frontend
    redis_ping backend1
    redis_ping backend2
    captured
}

record_redis-policy() {
    local pod interfaces=()
    redis_lab
    lab_deny db ip saddr 10.244.1.3 tcp dport 6379
    for pod in db frontend backend1 backend2; do
        capture node-1 "v-$pod" "$LAB_TMP/$pod.pcap" -Q in --time-stamp-precision=nano
        interfaces+=("default/$pod=$LAB_TMP/$pod.pcap")
    done
    fails redis_ping frontend
    redis_ping backend1
    redis_ping backend2
    captured
    "$HERE/pcapng.py" "$1/in.pcapng" "${interfaces[@]}"
}

record_redis-allow-any() {
    redis_lab
    capture node-1 br0 "$1/in.pcap" --time-stamp-precision=nano
    redis_ping frontend
    redis_ping backend1
    redis_ping backend2
    captured
}

# dns_server NS: dnsmasq with a few records of the cluster; big.* does not fit in 512 bytes of UDP.
dns_server() {
    local i arguments=()
    for ((i = 0; i < 12; i++)); do
        arguments+=("--txt-record=big.shop.svc.cluster.local,a record that makes the answer long, number $i")
    done
    serve "$1" dnsmasq --keep-in-foreground --no-resolv --no-hosts --no-daemon --conf-file=/dev/null --port=53 \
        --local=/cluster.local/ --edns-packet-max=512 --address=/api.shop.svc.cluster.local/10.96.0.20 \
        --host-record=kubernetes.default.svc.cluster.local,10.96.0.1,fd00:10:96::1 "${arguments[@]}"
    listening "$1" 53
}

record_dns() {
    local server=10.244.1.2 client=(within foo dig +tries=2 +time=1 +noall +answer)
    lab_node 1
    lab_pod 1 2 coredns
    lab_pod 1 3 foo
    lab_pod 1 4 metrics
    lab_pod 1 5 impostor
    dns_server coredns
    dns_server metrics
    dns_server impostor
    serve coredns socat TCP4-LISTEN:9153,fork,reuseaddr EXEC:'/bin/echo metrics'
    listening coredns 9153
    lab_deny coredns tcp dport 9153
    lab_deny metrics udp dport 53
    lab_deny impostor tcp dport 53
    # In the client's own namespace, on all its devices: Linux cooked capture, version 2.
    capture foo any "$1/in.pcap" -y LINUX_SLL2
    "${client[@]}" "@$server" api.shop.svc.cluster.local A
    "${client[@]}" "@$server" kubernetes.default.svc.cluster.local AAAA
    "${client[@]}" "@$server" missing.shop.svc.cluster.local A
    "${client[@]}" +tcp "@$server" api.shop.svc.cluster.local A
    "${client[@]}" "@$server" big.shop.svc.cluster.local TXT
    fails "${client[@]}" @10.244.1.4 api.shop.svc.cluster.local A
    fails "${client[@]}" +tcp @10.244.1.5 api.shop.svc.cluster.local A
    fails within foo curl -sS --max-time 2 http://10.244.1.2:9153/metrics
    captured
}

# http_server NS: nginx with a big file on port 8080 and a second server on port 9090.
http_server() {
    mkdir -p "$LAB_TMP/www"
    head -c "$HTTP_BODY_BYTES" /dev/zero | tr '\0' 'x' >"$LAB_TMP/www/big"
    echo ok >"$LAB_TMP/www/healthz"
    chmod -R a+rX "$LAB_TMP"
    cat >"$LAB_TMP/nginx.conf" <<CONF
daemon off;
worker_processes 1;
pid $LAB_TMP/nginx.pid;
error_log stderr;
events {}
http {
    access_log off;
    server { listen 8080; root $LAB_TMP/www; }
    server { listen 9090; return 204; }
}
CONF
    serve "$1" nginx -p "$LAB_TMP" -c "$LAB_TMP/nginx.conf"
    listening "$1" 9090
}

record_http() {
    local web=http://10.244.1.2
    lab_node 1
    lab_pod 1 2 web
    lab_pod 1 3 shop
    lab_pod 1 4 scraper
    http_server web
    lab_deny web ip saddr 10.244.1.4 tcp dport 8080
    lab_deny web tcp dport 9090
    # The headers are what matters; the original lengths stay in the capture.
    capture node-1 br0 "$LAB_TMP/br0.pcap" --snapshot-length=128
    # One connection, two requests (keep-alive).
    within shop curl -sS --max-time 5 -o /dev/null "$web:8080/big" -o /dev/null "$web:8080/healthz"
    fails within scraper curl -sS --max-time 3 "$web:8080/healthz"
    fails within shop curl -sS --max-time 2 "$web:9090/"
    captured
    "$HERE/pcapng.py" "$1/in.pcapng" "br0=$LAB_TMP/br0.pcap"
}

record_icmp() {
    lab_node 1
    lab_router
    lab_uplink 1
    lab_pod 1 2 client
    lab_pod 1 3 web
    lab_pod 1 4 open
    serve web socat TCP4-LISTEN:80,fork,reuseaddr EXEC:'/bin/echo hello'
    listening web 80
    lab_deny web icmp type echo-request
    lab_deny web udp dport 9999
    capture node-1 br0 "$1/in.pcap"
    within client ping -n -q -c 2 -i 0.2 10.244.1.4
    within open ping -n -q -c 2 -i 0.2 10.244.1.2
    fails within client ping -n -q -c 2 -i 0.2 -W 1 10.244.1.3
    within web ping -n -q -c 2 -i 0.2 10.244.1.2
    # Closed UDP ports: the answer is an ICMP port unreachable, which socat may or may not live to see.
    echo probe | within client socat -t 0.3 - UDP4:10.244.1.4:9999 2>/dev/null || true
    echo probe | within client socat -t 0.3 - UDP4:10.244.1.3:9999 2>/dev/null || true
    echo probe | within web socat -t 0.3 - UDP4:10.244.1.2:9999 2>/dev/null || true
    # An open port, and a closed one that answers with RST.
    within client socat -T 1 - TCP4:10.244.1.3:80 </dev/null
    fails within client socat - TCP4:10.244.1.4:81
    # From the isolated pod to the outside: time exceeded, port unreachable, fragmentation needed.
    within web traceroute -n -q 1 -N 1 -w 1 -m 5 192.0.2.10
    fails within web ping -n -q -c 1 -W 1 -M 'do' -s 1450 192.0.2.10
    captured
}

record_ipv6() {
    local name host
    LAB_IPV6=yes
    lab_node 1
    # The pods come up while the capture runs: duplicate address detection, router solicitation and
    # advertisement, multicast listener reports. Addresses come from the lab, not from the advertisement.
    serve node-1 dnsmasq --keep-in-foreground --no-daemon --conf-file=/dev/null --port=0 --interface=br0 \
        --enable-ra --dhcp-range=::,constructor:br0,ra-only,64,infinite
    sleep 1
    capture node-1 br0 "$LAB_TMP/br0.pcap"
    host=2
    for name in web client other; do
        lab_pod 1 "$host" "$name" accept_dad=1 accept_ra=1 autoconf=0
        host=$((host + 1))
    done
    serve web socat TCP6-LISTEN:80,ipv6only=0,fork,reuseaddr EXEC:'/bin/echo hello'
    listening web 80
    lab_deny web ip6 saddr fd00:10:244:1::4 tcp dport 80
    lab_deny web ip6 saddr fd00:10:244:1::4 icmpv6 type echo-request
    # Until the addresses are no longer tentative.
    sleep 2.5
    for name in web client other; do
        within "$name" ip neigh flush all
    done
    within client socat -T 1 - "TCP6:[fd00:10:244:1::2]:80" </dev/null
    within client ping -6 -n -q -c 2 -i 0.2 fd00:10:244:1::2
    within client socat -T 1 - TCP4:10.244.1.2:80 </dev/null
    within other socat -T 1 - TCP4:10.244.1.2:80 </dev/null
    fails within other timeout 2 socat - "TCP6:[fd00:10:244:1::2]:80"
    fails within other ping -6 -n -q -c 2 -i 0.2 -W 1 fd00:10:244:1::2
    within web ping -6 -n -q -c 2 -i 0.2 fd00:10:244:1::4
    captured
    "$HERE/pcapng.py" "$1/in.pcapng" "br0=$LAB_TMP/br0.pcap"
}

# datagram NS ADDRESS PORT: one big datagram; prints how many bytes came back.
datagram() {
    head -c "$DATAGRAM_BYTES" /dev/zero | within "$1" socat -b 8192 -t 0.5 - "$2:$3" | wc -c
}

echoed() {
    [[ $(datagram "$@") == "$DATAGRAM_BYTES" ]]
}

# sctp_echo NS TIMEOUT: one line to the SCTP echo server and back.
sctp_echo() {
    (echo hello over sctp && sleep 1) | within "$1" timeout "$2" "$USRSCTP/client" 10.244.1.5 7 | grep hello
}

record_fragments-sctp() {
    LAB_IPV6=yes
    lab_node 1
    lab_pod 1 2 client
    lab_pod 1 3 server
    lab_pod 1 4 intruder
    # Only IPv4: an SCTP association uses every address that its ends have.
    LAB_IPV6=no
    lab_pod 1 5 sctp
    lab_pod 1 6 client4
    lab_pod 1 7 intruder4
    serve server socat -b 8192 -T 2 UDP6-LISTEN:5000,ipv6only=0,fork,reuseaddr PIPE
    serve server socat -b 8192 -T 2 UDP6-LISTEN:5001,ipv6only=0,fork,reuseaddr PIPE
    listening server 5001
    serve sctp "$USRSCTP/echo_server"
    serve sctp socat TCP4-LISTEN:7,fork,reuseaddr PIPE
    listening sctp 7
    # By address, not by port: only a first fragment has ports.
    lab_deny server ip saddr 10.244.1.4
    lab_deny server ip6 saddr fd00:10:244:1::4 meta l4proto != ipv6-icmp
    lab_deny sctp ip saddr 10.244.1.7
    lab_deny sctp meta l4proto tcp
    capture node-1 br0 "$1/in.pcap"
    echoed client UDP4:10.244.1.3 5000
    echoed client 'UDP6:[fd00:10:244:1::3]' 5000
    fails echoed intruder UDP4:10.244.1.3 5000
    fails echoed intruder 'UDP6:[fd00:10:244:1::3]' 5000
    sctp_echo client4 5
    fails sctp_echo intruder4 3
    fails within client4 timeout 2 socat - TCP4:10.244.1.5:7
    # The allowed host, a port that no rule names: later fragments must share the first one's fate.
    lab_deny server ip saddr 10.244.1.2
    fails echoed client UDP4:10.244.1.3 5001
    captured
}

# hello NS PORT: a server that says hello and closes.
hello() {
    serve "$1" socat "TCP4-LISTEN:$2,fork,reuseaddr" EXEC:'/bin/echo hello'
    listening "$1" "$2"
}

# connects NS ADDRESS:PORT: a connection in which the server says hello, within 2 s.
connects() {
    within "$1" timeout 2 socat -T 1 - "TCP4:$2" </dev/null | grep '^hello$'
}

record_node-exit() {
    lab_router
    lab_node 1
    lab_uplink 1
    lab_node 2
    lab_uplink 2
    lab_pod 1 2 client
    lab_pod 1 3 web
    lab_pod 2 2 api
    lab_pod 2 3 batch
    http_server web
    hello client 8080
    hello api 8080
    hello batch 8080
    hello node-1 9100
    hello node-2 9100
    hello internet 80
    # Stands for the egress policy of client, behind the bridge of node-1.
    lab_deny internet ip daddr 192.0.2.200
    lab_deny batch tcp dport 8080
    lab_deny node-2 ip saddr 10.244.1.2 tcp dport 9100
    # Stands for the default-deny of web.
    lab_deny web 'ip saddr { 172.18.0.12, 192.0.2.10, 10.244.2.2 }' tcp dport 8080
    capture node-1 br0 "$1/in.pcap"
    # The kubelet's probe, from the node's own address.
    within node-1 curl -sS --max-time 2 -A kube-probe/1.33 http://10.244.1.3:8080/healthz
    within node-1 ping -n -q -c 1 10.244.1.3
    fails connects node-2 10.244.1.3:8080
    fails connects internet 10.244.1.3:8080
    fails connects api 10.244.1.3:8080
    connects web 192.0.2.10:80
    connects client 192.0.2.10:80
    fails connects client 192.0.2.200:80
    connects client 10.244.2.2:8080
    fails connects client 10.244.2.3:8080
    connects client 172.18.0.11:9100
    fails connects client 172.18.0.12:9100
    connects api 10.244.1.2:8080
    captured
}

# fetch NS URL...: the pages, on one connection where the server keeps it.
fetch() {
    local ns=$1 url arguments=()
    shift
    for url in "$@"; do
        arguments+=(-o /dev/null "$url")
    done
    within "$ns" curl -sSf --max-time 5 "${arguments[@]}"
}

record_shop() {
    local pod
    lab_router
    lab_node 1
    lab_uplink 1
    lab_pod 1 2 coredns
    lab_pod 1 3 web1
    lab_pod 1 4 web2
    lab_pod 1 5 api
    lab_pod 1 6 db
    lab_pod 1 7 prometheus
    dns_server coredns
    for pod in web1 web2; do
        http_server "$pod"
    done
    serve api python3 -m http.server 8000 --directory "$LAB_TMP/www"
    listening api 8000
    serve db redis-server --bind 0.0.0.0 --protected-mode no --port 6379 --save '' --dir "$LAB_TMP"
    listening db 6379
    capture node-1 br0 "$1/in.pcap" --snapshot-length=256
    for pod in web1 web2; do
        within node-1 curl -sSf --max-time 2 -A kube-probe/1.33 "http://10.244.1.$((${pod#web} + 2)):8080/healthz"
        fetch internet "http://10.244.1.$((${pod#web} + 2)):8080/healthz"
        within "$pod" dig +tries=2 +time=1 +noall +answer @10.244.1.2 api.shop.svc.cluster.local A
        fetch "$pod" http://10.244.1.5:8000/healthz http://10.244.1.5:8000/healthz
        within api dig +tries=2 +time=1 +noall +answer @10.244.1.2 db.shop.svc.cluster.local A
        [[ $(within api redis-cli -h 10.244.1.6 incr orders) == "${pod#web}" ]]
    done
    # What nobody has planned: a web server looks into the database.
    [[ $(within web2 redis-cli -h 10.244.1.6 get orders) == 2 ]]
    fetch prometheus http://10.244.1.3:9090/
    fetch prometheus http://10.244.1.4:9090/
    captured
}

# named_server NS ADDRESS: starts dnsmasq, which resolves api.example.com to this address.
named_server() {
    serve "$1" dnsmasq --keep-in-foreground --no-resolv --no-hosts --no-daemon --conf-file=/dev/null --port=53 --local-ttl=60 \
        "--address=/api.example.com/$2" --host-record=edge.example.net,192.0.2.11 \
        --cname=www.models.example.org,edge.example.net
    listening "$1" 53
}

record_names() {
    local client=(within agent dig +tries=2 +time=1 +noall +answer)
    lab_router
    within internet ip address add 192.0.2.11/24 dev eth0
    lab_node 1
    lab_uplink 1
    lab_pod 1 2 coredns
    lab_pod 1 3 agent
    lab_pod 1 4 impostor
    named_server coredns 192.0.2.10
    named_server impostor 192.0.2.200
    hello internet 443
    hello internet 80
    # Denies what the policy of agent denies, behind the bridge of node-1.
    lab_deny internet tcp dport 80
    lab_deny internet ip daddr 192.0.2.200
    within internet nft add rule inet bhrec denied ip daddr 192.0.2.10 tcp dport 443 drop
    capture node-1 br0 "$1/in.pcap"
    fails connects agent 192.0.2.10:443
    within internet nft flush chain inet bhrec denied
    lab_deny internet tcp dport 80
    lab_deny internet ip daddr 192.0.2.200
    "${client[@]}" @10.244.1.2 API.example.com A
    connects agent 192.0.2.10:443
    fails connects agent 192.0.2.10:80
    "${client[@]}" @10.244.1.4 api.example.com A
    fails connects agent 192.0.2.200:443
    "${client[@]}" +tcp @10.244.1.2 www.models.example.org A
    connects agent 192.0.2.11:443
    captured
}

record() {
    local name=$1
    [[ -d $HERE/$name ]] || die "no folder $HERE/$name"
    LAB_IPV6=no
    LAB_TMP=$(mktemp -d)
    printf 'recording %s\n' "$name"
    # No "|| die" here: it would switch off set -e in the case.
    mkdir "$LAB_TMP/out"
    "record_$name" "$LAB_TMP/out" >"$LAB_TMP/record.log"
    mv "$LAB_TMP/out"/in.* "$HERE/$name/"
    lab_destroy
}

finish() {
    local status=$?
    if ((status != 0)) && [[ -n $LAB_TMP ]]; then
        tail -n 20 "$LAB_TMP"/*.log >&2 || true
    fi
    lab_destroy
}

main() {
    local name
    (($# > 0)) || set -- "${CASES[@]}"
    for name in "$@"; do
        [[ " ${CASES[*]} " == *" $name "* ]] || die "no case '$name'; the cases are: ${CASES[*]}"
    done
    ((EUID == 0)) || die "network namespaces need root"
    check_programs
    trap finish EXIT
    # A recording that was killed may have left namespaces behind.
    lab_destroy
    for name in "$@"; do
        record "$name"
    done
}

main "$@"
