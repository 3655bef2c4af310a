//! Errors of attaching to interfaces, each with a remedy.

use std::io;
use std::path::PathBuf;

use super::xdp_mode::XdpMode;

/// An error of opening or querying an interface, one of its queues, or the tc data path.
#[derive(Debug, thiserror::Error)]
pub enum XskError {
    /// The calling thread's network namespace has no interface of this name.
    #[error(
        "{interface}: no such interface in this network namespace\n  help: `ip link` lists the interfaces; a pod's end of a \
         veth is visible only in the pod's namespace"
    )]
    NoInterface {
        /// The requested name.
        interface: String,
    },
    /// The interface is administratively down, so the kernel neither receives nor sends on it.
    #[error("{interface}: the interface is down\n  help: ip link set {interface} up")]
    Down {
        /// The interface's name.
        interface: String,
    },
    /// The process lacks a capability.
    #[error(
        "{interface}: {operation}: {source}\n  help: run as root, or with CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF, and \
         with a seccomp profile that permits bpf(2)"
    )]
    NotPermitted {
        /// The interface's name.
        interface: String,
        /// The operation that the kernel refused.
        operation: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel has no AF_XDP, or a version that is too old.
    #[error(
        "{interface}: {operation}: {source}\n  help: the kernel must be 5.9 or newer with CONFIG_XDP_SOCKETS and \
         CONFIG_BPF_SYSCALL"
    )]
    NoKernelSupport {
        /// The interface's name.
        interface: String,
        /// The operation that the kernel does not support.
        operation: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The interface carries no Ethernet frames, such as the loopback interface or a tunnel.
    #[error(
        "{interface}: not an Ethernet interface\n  help: name an Ethernet interface, such as a veth or a network card"
    )]
    NotEthernet {
        /// The interface's name.
        interface: String,
    },
    /// Another XDP program is attached, possibly by another running vswitch.
    #[error(
        "{interface}: an XDP program is attached already\n  help: stop the process that attached it (find it with \
         `bpftool net` and `bpftool link`), or detach a leftover program: ip link set {interface} xdp off"
    )]
    ProgramPresent {
        /// The interface's name.
        interface: String,
    },
    /// The driver supports no XDP program in this mode.
    #[error(
        "{interface}: the driver refuses an XDP program in mode {mode}: {source}\n  help: use mode `skb`, which works \
         with every driver, or `auto`"
    )]
    ModeRefused {
        /// The interface's name.
        interface: String,
        /// The requested mode.
        mode: XdpMode,
        /// The kernel's error.
        source: io::Error,
    },
    /// Packets of this MTU do not fit one buffer, and the kernel or the driver supports no multi-buffer packets.
    #[error(
        "{interface}: an MTU of {mtu} needs multi-buffer packets, which this kernel or driver does not support\n  help: \
         run `ip link set {interface} mtu {most}`, also on the peer, or use Linux 6.6 or newer"
    )]
    MtuTooLarge {
        /// The interface's name.
        interface: String,
        /// The interface's MTU, in bytes.
        mtu: u32,
        /// The largest MTU that works, in bytes.
        most: u32,
    },
    /// The kernel refuses to pin the packet memory.
    #[error(
        "{interface}: the kernel refuses to register {bytes} bytes of packet memory: {source}\n  help: raise the limit on \
         locked memory (`ulimit -l unlimited`, LimitMEMLOCK=infinity), grant CAP_IPC_LOCK, or use fewer packet buffers"
    )]
    PacketMemory {
        /// The interface's name.
        interface: String,
        /// Size of the packet memory, in bytes.
        bytes: usize,
        /// The kernel's error.
        source: io::Error,
    },
    /// Another AF_XDP socket is bound to the queue.
    #[error(
        "{interface}: queue {queue} is in use by another AF_XDP socket\n  help: stop the other process (find it \
         with `ss --xdp -p` or `bpftool net`)"
    )]
    QueueBusy {
        /// The interface's name.
        interface: String,
        /// The queue's number, from 0.
        queue: u32,
    },
    /// The queue number is beyond the interface's last queue.
    #[error("{interface}: queue {queue} does not exist: the interface has {queues} queues, numbered from 0")]
    NoQueue {
        /// The interface's name.
        interface: String,
        /// The requested queue.
        queue: u32,
        /// The interface's number of queues.
        queues: u32,
    },
    /// The interface has fewer transmit queues than receive queues. The kernel would still bind the socket, but lose the packets that it
    /// sends.
    #[error(
        "{interface}: the interface has {receive} receive queues but only {transmit} transmit queues\n  help: ethtool -L {interface} \
         tx {receive} (or rx {transmit})"
    )]
    TransmitQueues {
        /// The interface's name.
        interface: String,
        /// The interface's number of receive queues.
        receive: u32,
        /// The interface's number of transmit queues.
        transmit: u32,
    },
    /// The kernel's verifier rejects one of the vswitch's programs.
    #[error(
        "the kernel's verifier rejects the program {program}: {reason}\n  help: use Linux 5.14 or newer and grant \
         CAP_PERFMON, or set `attach: xdp` in the configuration"
    )]
    Program {
        /// The program's name.
        program: &'static str,
        /// The last lines of the verifier's log.
        reason: String,
    },
    /// The kernel is built without tc hooks.
    #[error(
        "{interface}: the kernel cannot attach a program at the tc hook: {source}\n  help: use a kernel with \
         CONFIG_NET_SCH_INGRESS and CONFIG_NET_CLS_BPF (modules sch_ingress, cls_bpf), or set `attach: xdp` in the configuration"
    )]
    NoTcHook {
        /// The interface's name.
        interface: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// Another qdisc or filter occupies the tc hook.
    #[error(
        "{interface}: another qdisc or filter occupies the tc hook: {source}\n  help: list them with `tc qdisc show dev {interface}` and \
         `tc filter show dev {interface} ingress`; remove leftovers with `tc qdisc del dev {interface} ingress`"
    )]
    TcHookInUse {
        /// The interface's name.
        interface: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// All 4,095 slots are in use; a VLAN tag on the trunk cannot number more.
    #[error(
        "{interface}: cannot open the port: 4,095 ports are open, the most that the trunk can number\n  help: close a port first"
    )]
    NoSlot {
        /// The interface's name.
        interface: String,
    },
    /// Maps and links cannot be pinned in this folder.
    #[error(
        "{}: maps and links cannot be pinned, so flows would end with the process: {source}\n  help: run `mount -t bpf bpf \
         /sys/fs/bpf` (in a container, mount the host's), or set `pins: none` in the configuration", path.display()
    )]
    NoBpfFileSystem {
        /// The configured path.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Another process owns the trunk.
    #[error(
        "{trunk}: another vswitch runs in this network namespace\n  help: stop it (find its process with \
         `ss -xlp | grep bulkhead`)"
    )]
    TrunkInUse {
        /// The name of the trunk's first end.
        trunk: String,
    },
    /// The thread cannot enter the network namespace.
    #[error(
        "{}: cannot enter the network namespace: {source}\n  help: give the path of a namespace, such as \
         /run/netns/NAME or /proc/PID/ns/net, and grant CAP_SYS_ADMIN", path.display()
    )]
    Namespace {
        /// The configured path.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Any other failed system call.
    #[error("{interface}: {operation}: {source}")]
    System {
        /// The interface's name.
        interface: String,
        /// The operation that failed.
        operation: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl XskError {
    /// Converts the error of attaching a program at a tc hook.
    pub(in crate::io) fn at_tc(interface: &str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ENOENT | libc::EOPNOTSUPP) => Self::NoTcHook { interface: interface.to_owned(), source },
            // EEXIST: another queueing discipline. EINVAL: a filter of another kind with the same preference.
            Some(libc::EEXIST | libc::EINVAL) => Self::TcHookInUse { interface: interface.to_owned(), source },
            _ => Self::system(interface, "attach the tc programs", source),
        }
    }

    /// Converts the error of any other operation on an interface.
    pub(in crate::io) fn system(interface: &str, operation: &'static str, source: io::Error) -> Self {
        let interface = interface.to_owned();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted { interface, operation, source },
            Some(libc::ENOSYS | libc::EAFNOSUPPORT | libc::ENOPROTOOPT) => {
                Self::NoKernelSupport { interface, operation, source }
            }
            Some(libc::ENODEV | libc::ENXIO) => Self::NoInterface { interface },
            _ => Self::System { interface, operation, source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_number_becomes_the_remedy_that_fits_it() {
        let told = |code| XskError::system("veth7", "create an AF_XDP socket", io::Error::from_raw_os_error(code));
        let text = told(libc::EPERM).to_string();
        assert!(text.contains("veth7: create an AF_XDP socket: Operation not permitted"), "{text}");
        assert!(text.contains("CAP_NET_RAW") && text.contains("CAP_BPF"), "{text}");
        assert!(told(libc::EAFNOSUPPORT).to_string().contains("CONFIG_XDP_SOCKETS"));
        assert!(matches!(told(libc::ENODEV), XskError::NoInterface { interface } if interface == "veth7"));
        assert!(told(libc::EIO).to_string().starts_with("veth7: create an AF_XDP socket: "));
        let at_tc = |code| XskError::at_tc("veth7", io::Error::from_raw_os_error(code)).to_string();
        assert!(at_tc(libc::ENOENT).contains("CONFIG_NET_CLS_BPF"), "an old kernel's missing feature is named");
        assert!(at_tc(libc::EEXIST).contains("tc qdisc show dev veth7"));
        assert!(at_tc(libc::EPERM).contains("attach the tc programs: Operation not permitted"));
        let present = XskError::ProgramPresent { interface: "veth7".to_owned() }.to_string();
        assert!(present.contains("ip link set veth7 xdp off"), "{present}");
    }

    #[test]
    fn what_an_old_kernel_lacks_is_named_with_the_release_or_the_option_that_has_it_and_a_way_without() {
        let error = io::Error::from_raw_os_error;
        let interface = || "veth7".to_owned();
        let asked = |code| XskError::system("veth7", "create an AF_XDP socket", error(code));
        let attached = |code| XskError::at_tc("veth7", error(code));
        let refused = "unknown func bpf_redirect_peer#155".to_owned();
        let program = XskError::Program { program: "bulkhead_in", reason: refused.clone() };
        let mtu = XskError::MtuTooLarge { interface: interface(), mtu: 9000, most: 3506 };
        let mode =
            XskError::ModeRefused { interface: interface(), mode: XdpMode::Drv, source: error(libc::EOPNOTSUPP) };
        for (told, parts) in [
            // Without bpf(2), AF_XDP, or an option of its sockets.
            (asked(libc::ENOSYS), ["5.9", "CONFIG_BPF_SYSCALL"]),
            (asked(libc::EAFNOSUPPORT), ["5.9", "CONFIG_XDP_SOCKETS"]),
            (asked(libc::ENOPROTOOPT), ["5.9", "create an AF_XDP socket"]),
            // Without the queueing discipline or the classifier for tc programs.
            (attached(libc::ENOENT), ["CONFIG_NET_SCH_INGRESS", "`attach: xdp`"]),
            (attached(libc::EOPNOTSUPP), ["CONFIG_NET_CLS_BPF", "`attach: xdp`"]),
            // Without this helper function for programs.
            (program, ["5.14", refused.as_str()]),
            // Without packets in several buffers.
            (mtu, ["6.6", "mtu 3506"]),
            (mode, ["`skb`", "`auto`"]),
        ] {
            let text = told.to_string();
            assert!(text.contains("\n  help: "), "{text}");
            for part in parts {
                assert!(text.contains(part), "{part} is not in: {text}");
            }
        }
        // Errors that no missing feature causes.
        assert!(matches!(attached(libc::EPERM), XskError::NotPermitted { .. }));
        assert!(matches!(attached(libc::ENODEV), XskError::NoInterface { .. }));
        assert!(matches!(asked(libc::ENOMEM), XskError::System { .. }));
    }
}
