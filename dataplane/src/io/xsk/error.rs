//! Why an interface cannot be taken, and what to do about it.

use std::io;
use std::path::PathBuf;

use super::xdp_mode::XdpMode;

/// An interface or one of its queues could not be opened, or asked about.
#[derive(Debug, thiserror::Error)]
pub enum XskError {
    /// There is none of this name here.
    #[error(
        "{interface}: no such interface in this network namespace\n  help: `ip link` lists them; a pod's own end of a \
         veth is only seen inside the pod's namespace"
    )]
    NoInterface {
        /// The name that was asked for.
        interface: String,
    },
    /// It is administratively down: the kernel would neither receive nor send.
    #[error("{interface}: the interface is down\n  help: ip link set {interface} up")]
    Down {
        /// Its name.
        interface: String,
    },
    /// The process lacks a capability.
    #[error(
        "{interface}: {operation}: {source}\n  help: run as root, or with CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF, and \
         with a seccomp profile that permits bpf(2)"
    )]
    NotPermitted {
        /// Its name.
        interface: String,
        /// What was refused.
        operation: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel has no AF_XDP, or too old a one.
    #[error(
        "{interface}: {operation}: {source}\n  help: the kernel must be 5.9 or newer with CONFIG_XDP_SOCKETS and \
         CONFIG_BPF_SYSCALL"
    )]
    NoKernelSupport {
        /// Its name.
        interface: String,
        /// What the kernel does not know.
        operation: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// It has no Ethernet packets: the loopback interface, a tunnel.
    #[error(
        "{interface}: not an Ethernet interface\n  help: name an Ethernet interface, such as a veth or a network card"
    )]
    NotEthernet {
        /// Its name.
        interface: String,
    },
    /// Somebody else's XDP program is attached. It may be a running instance of this program.
    #[error(
        "{interface}: an XDP program is attached already\n  help: stop the program that has attached it (`bpftool net` \
         and `bpftool link` tell), or remove what was left over: ip link set {interface} xdp off"
    )]
    ProgramPresent {
        /// Its name.
        interface: String,
    },
    /// The driver does not take an XDP program in this mode.
    #[error(
        "{interface}: the driver refuses an XDP program in mode {mode}: {source}\n  help: use mode `skb`, which works \
         with every driver, or `auto`"
    )]
    ModeRefused {
        /// Its name.
        interface: String,
        /// The mode that was asked for.
        mode: XdpMode,
        /// What the kernel said.
        source: io::Error,
    },
    /// Packets of this size do not fit a buffer, and the kernel or the driver cannot spread them over several.
    #[error(
        "{interface}: an MTU of {mtu} needs packets in several buffers, which this kernel or driver cannot\n  help: ip \
         link set {interface} mtu {most} (and the same on the other side), or Linux 6.6 or newer"
    )]
    MtuTooLarge {
        /// Its name.
        interface: String,
        /// Its MTU, in bytes.
        mtu: u32,
        /// The largest that works, in bytes.
        most: u32,
    },
    /// The kernel does not pin the packet memory.
    #[error(
        "{interface}: the kernel does not register {bytes} bytes of packet memory: {source}\n  help: raise the limit on \
         locked memory (`ulimit -l unlimited`, LimitMEMLOCK=infinity), grant CAP_IPC_LOCK, or use fewer packet buffers"
    )]
    PacketMemory {
        /// Its name.
        interface: String,
        /// How much, in bytes.
        bytes: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// Another AF_XDP socket has the queue.
    #[error(
        "{interface}: queue {queue} is in use by another AF_XDP socket\n  help: stop the other program (`ss --xdp -p` \
         or `bpftool net` may tell which)"
    )]
    QueueBusy {
        /// Its name.
        interface: String,
        /// The queue, from 0.
        queue: u32,
    },
    /// The interface has fewer queues.
    #[error("{interface}: there is no queue {queue}; the interface has {queues}, from 0")]
    NoQueue {
        /// Its name.
        interface: String,
        /// The queue that was asked for.
        queue: u32,
        /// How many there are.
        queues: u32,
    },
    /// There is no transmit queue for each receive queue. The kernel binds a socket all the same, and loses what it sends.
    #[error(
        "{interface}: the interface has {receive} receive queues and {transmit} to transmit\n  help: ethtool -L {interface} \
         tx {receive} (or rx {transmit})"
    )]
    TransmitQueues {
        /// Its name.
        interface: String,
        /// How many receive queues it has.
        receive: u32,
        /// How many transmit queues it has.
        transmit: u32,
    },
    /// The kernel's verifier does not take one of our programs.
    #[error(
        "the kernel does not take the program {program}: {reason}\n  help: Linux 5.14 or newer and CAP_PERFMON; else \
         `attach: xdp` in the configuration"
    )]
    Program {
        /// Its name.
        program: &'static str,
        /// What the verifier said last.
        reason: String,
    },
    /// The kernel has no tc hooks.
    #[error(
        "{interface}: the kernel does not attach a program at the tc hook: {source}\n  help: it needs CONFIG_NET_SCH_INGRESS and \
         CONFIG_NET_CLS_BPF (modules sch_ingress, cls_bpf); else `attach: xdp` in the configuration"
    )]
    NoTcHook {
        /// Its name.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Something else is where our programs go.
    #[error(
        "{interface}: something else is at the tc hook: {source}\n  help: `tc qdisc show dev {interface}` and `tc filter show dev \
         {interface} ingress` tell what; `tc qdisc del dev {interface} ingress` removes what was left over"
    )]
    TcHookInUse {
        /// Its name.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// All tags of the trunk are in use.
    #[error("{interface}: there are 4,095 ports already, which is as many as the trunk can tell apart")]
    NoSlot {
        /// Its name.
        interface: String,
    },
    /// Maps and links cannot be given names there.
    #[error(
        "{}: maps and links cannot outlive the process: {source}\n  help: mount -t bpf bpf /sys/fs/bpf, and in a container mount the \
         host's into it; or `pins: none` in the configuration", path.display()
    )]
    NoBpfFileSystem {
        /// The path that was given.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Another process has the trunk.
    #[error(
        "{trunk}: another vswitch runs in this network namespace\n  help: stop it (`ss -xlp | grep bulkhead` tells which \
         process it is)"
    )]
    TrunkInUse {
        /// The name of its first end.
        trunk: String,
    },
    /// A network namespace could not be entered.
    #[error(
        "{}: cannot enter the network namespace: {source}\n  help: give the path of a namespace, such as \
         /run/netns/NAME or /proc/PID/ns/net; CAP_SYS_ADMIN is needed", path.display()
    )]
    Namespace {
        /// The path that was given.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Anything else.
    #[error("{interface}: {operation}: {source}")]
    System {
        /// The interface's name.
        interface: String,
        /// What failed.
        operation: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl XskError {
    /// What an error number means when a program was to be attached at tc.
    pub(in crate::io) fn at_tc(interface: &str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ENOENT | libc::EOPNOTSUPP) => Self::NoTcHook { interface: interface.to_owned(), source },
            // Another queueing discipline; a filter of another kind at our preference.
            Some(libc::EEXIST | libc::EINVAL) => Self::TcHookInUse { interface: interface.to_owned(), source },
            _ => Self::system(interface, "attach the tc programs", source),
        }
    }

    /// What an error number means whatever was tried.
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
            // No bpf(2), no AF_XDP, no option of its sockets.
            (asked(libc::ENOSYS), ["5.9", "CONFIG_BPF_SYSCALL"]),
            (asked(libc::EAFNOSUPPORT), ["5.9", "CONFIG_XDP_SOCKETS"]),
            (asked(libc::ENOPROTOOPT), ["5.9", "create an AF_XDP socket"]),
            // No queueing discipline for tc programs, no classifier.
            (attached(libc::ENOENT), ["CONFIG_NET_SCH_INGRESS", "`attach: xdp`"]),
            (attached(libc::EOPNOTSUPP), ["CONFIG_NET_CLS_BPF", "`attach: xdp`"]),
            // No such function for programs.
            (program, ["5.14", refused.as_str()]),
            // No packets in several buffers.
            (mtu, ["6.6", "mtu 3506"]),
            (mode, ["`skb`", "`auto`"]),
        ] {
            let text = told.to_string();
            assert!(text.contains("\n  help: "), "{text}");
            for part in parts {
                assert!(text.contains(part), "{part} is not in: {text}");
            }
        }
        // And what is no feature is none.
        assert!(matches!(attached(libc::EPERM), XskError::NotPermitted { .. }));
        assert!(matches!(attached(libc::ENODEV), XskError::NoInterface { .. }));
        assert!(matches!(asked(libc::ENOMEM), XskError::System { .. }));
    }
}
