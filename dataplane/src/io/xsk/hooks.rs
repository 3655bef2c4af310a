//! Lists the programs at an interface's traffic control (tc) hooks: tcx programs (Linux 6.6) and filters of the `clsact` queueing
//! discipline. Source: `include/uapi/linux/{bpf,rtnetlink,pkt_sched,pkt_cls}.h`.

use std::ffi::c_long;
use std::io;
use std::os::fd::AsRawFd;

use super::bpf::{self, AtHook, Hook};
use super::netlink::{ask, attributes};
use super::small_size;

/// A tc hook of an interface, from the node's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TcHook {
    /// Packets that the interface receives.
    Ingress,
    /// Packets that the node sends out of the interface.
    Egress,
}

/// A program attached to a tc hook.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TcProgram {
    /// The hook to which the program is attached.
    pub hook: TcHook,
    /// The program's name for display, or its id if it has no name or the process may not read it.
    pub name: String,
    /// The kernel's id of the tcx link that attaches the program. `None` for a filter, and for a tcx program without a link.
    pub link: Option<u32>,
}

/// Returns the tc programs of an interface in the calling thread's network namespace, without filters of other kinds.
///
/// # Errors
/// If the kernel refuses. A kernel without tcx is no error.
pub fn tc_programs(interface: u32) -> io::Result<Vec<TcProgram>> {
    let mut found = Vec::new();
    for (hook, tcx, parent) in [
        // `TC_H_CLSACT` with `TC_H_MIN_INGRESS`, `TC_H_MIN_EGRESS`.
        (TcHook::Ingress, Hook::TcIngress, 0xffff_fff2_u32),
        (TcHook::Egress, Hook::TcEgress, 0xffff_fff3),
    ] {
        let attached = tcx_programs(tcx, interface)?;
        found.extend(attached.programs.into_iter().zip(attached.links).map(|(id, link)| {
            let name = name(id).unwrap_or_else(|_| format!("{id}"));
            TcProgram { hook, name, link: Some(link).filter(|&link| link != 0) }
        }));
        let mut filters = Vec::new();
        let asked = ask(libc::RTM_GETTFILTER, true, &filter_request(interface, parent), |message| {
            filters.extend(filter(message));
        });
        match asked {
            Ok(()) => found.extend(filters.into_iter().map(|name| TcProgram { hook, name, link: None })),
            // The interface has no clsact, or the kernel has no queueing disciplines.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOENT)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Returns the programs that are attached by tcx to a hook of an interface. Empty if there are none, or if the kernel has no tcx (before Linux
/// 6.6).
///
/// # Errors
/// If the kernel refuses, for example without privileges.
fn tcx_programs(hook: Hook, interface: u32) -> io::Result<AtHook> {
    bpf::at_hook(hook, interface).or_else(|error| match error.raw_os_error() {
        // EINVAL: the kernel has no tcx. ENOENT: no program was ever attached.
        Some(libc::EINVAL | libc::ENOENT | libc::EOPNOTSUPP) => Ok(AtHook { programs: Vec::new(), links: Vec::new() }),
        _ => Err(error),
    })
}

/// Returns a program's name, or its id if it has none.
fn name(id: u32) -> io::Result<String> {
    /// `BPF_PROG_GET_FD_BY_ID`, `BPF_OBJ_GET_INFO_BY_FD`.
    const GET_FD_BY_ID: c_long = 13;
    const GET_INFO_BY_FD: c_long = 15;
    #[repr(C)]
    struct Which {
        id: u32,
        next: u32,
        open_flags: u32,
    }
    #[repr(C)]
    struct Ask {
        descriptor: u32,
        info_len: u32,
        info: u64,
    }
    /// `struct bpf_prog_info` up to the name.
    #[derive(Default)]
    #[repr(C)]
    struct Info {
        before: [u64; 8],
        name: [u8; 16],
    }
    // SAFETY: the attributes of this command, without pointers.
    let descriptor = bpf::owned(unsafe { bpf::bpf(GET_FD_BY_ID, Which { id, next: 0, open_flags: 0 }) }?)?;
    let mut info = Info::default();
    let ask = Ask {
        descriptor: descriptor.as_raw_fd().cast_unsigned(),
        info_len: small_size::<Info>(),
        info: bpf::address(&raw mut info),
    };
    // SAFETY: the attributes of this command. The kernel writes at most `info_len` bytes into `info`, which is borrowed by
    // nobody else. The lengths in it are zero, so that it copies no instructions.
    unsafe { bpf::bpf(GET_INFO_BY_FD, ask) }?;
    let end = info.name.iter().position(|&byte| byte == 0).unwrap_or(info.name.len());
    let name = String::from_utf8_lossy(&info.name[..end]).into_owned();
    if name.is_empty() { Ok(format!("{id}")) } else { Ok(name) }
}

/// Builds a `struct tcmsg` that requests all filters of an interface below this parent.
fn filter_request(interface: u32, parent: u32) -> [u8; 20] {
    let mut body = [0; 20];
    body[4..8].copy_from_slice(&interface.to_ne_bytes());
    body[12..16].copy_from_slice(&parent.to_ne_bytes());
    body
}

/// Returns the name of a filter that is a program. `None` for other filters and for chains, which the kernel lists too.
fn filter(message: &[u8]) -> Option<String> {
    /// `TCA_KIND`, `TCA_OPTIONS`, `TCA_BPF_NAME`.
    const KIND: u16 = 1;
    const OPTIONS: u16 = 2;
    const NAME: u16 = 7;
    let body = message.get(20..)?;
    let is_program = attributes(body).any(|(kind, value)| kind == KIND && value.starts_with(b"bpf\0"));
    let (_, options) = attributes(body).find(|&(kind, _)| kind == OPTIONS).filter(|_| is_program)?;
    // Classic BPF programs have no name.
    let name = attributes(options).find(|&(kind, _)| kind == NAME).map_or(&b"bpf"[..], |(_, name)| name);
    Some(String::from_utf8_lossy(name.strip_suffix(&[0]).unwrap_or(name)).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(4 + value.len()).unwrap();
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn a_filter_that_is_a_program_is_told_by_its_name_and_no_other_one() {
        let message = |kind: &[u8], options: &[u8]| [vec![0; 20], attribute(1, kind), attribute(2, options)].concat();
        let named = attribute(7, b"cil_from_container\0");
        assert_eq!(filter(&message(b"bpf\0", &named)).as_deref(), Some("cil_from_container"));
        assert_eq!(filter(&message(b"bpf\0", &[])).as_deref(), Some("bpf"), "classic BPF");
        assert_eq!(filter(&[vec![0; 20], attribute(1, b"bpf\0")].concat()), None, "a chain");
        assert_eq!(filter(&message(b"flower\0", &named)), None);
        assert_eq!(filter(&[0; 12]), None);
    }

    #[test]
    fn the_loopback_interface_has_none_where_the_kernel_tells() {
        // Without privileges, the kernel does not list tcx programs.
        assert!(tc_programs(1).is_ok_and(|found| found.is_empty()) || tcx_programs(Hook::TcIngress, 1).is_err());
    }
}
