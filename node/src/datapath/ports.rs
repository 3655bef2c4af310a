//! Attaches to interfaces, and opens and closes their ports, as their states demand.

use bulkhead_dataplane::PortId;
use bulkhead_dataplane::io::{LinkStatus, set_link_up};

use super::tc::TcOpening;
use super::xdp::XdpOpening;
use super::{Attachment, Handover, Kind, LinuxDatapath, NewPort};
use crate::config::PortEntry;
use crate::interfaces::{AttachError, Datapath, OpenError, Opening};

impl Datapath for LinuxDatapath {
    type Attachment = Attachment;

    fn attach(&mut self, entry: &PortEntry, link: &LinkStatus) -> Result<Attachment, AttachError> {
        if !self.force && self.carries_default_route(link.index).map_err(AttachError::Refused)? {
            let name = &entry.interface;
            let help = "help: start with --force if that is intended";
            return Err(AttachError::Refused(format!("{name} carries the node's default route\n{help}")));
        }
        match &self.kind {
            Kind::Xdp(xdp) => xdp.attach(entry, link).map(Attachment::Xdp),
            Kind::Tc(tc) => tc.attach(entry, link).map(Attachment::Tc),
        }
    }

    fn set_up(&mut self, link: &LinkStatus) -> Result<(), String> {
        set_link_up(link.index).map_err(|error| error.to_string())
    }

    fn index(&self, attachment: &Attachment) -> Option<u32> {
        match attachment {
            Attachment::Xdp(attachment) => attachment.index(),
            Attachment::Tc(attachment) => attachment.index(),
        }
    }

    fn is_here_as(&self, attachment: &Attachment, index: u32) -> bool {
        match attachment {
            Attachment::Xdp(attachment) => attachment.is_here_as(index),
            Attachment::Tc(attachment) => attachment.is_here_as(index),
        }
    }

    fn refresh(
        &mut self,
        entry: &PortEntry,
        link: &LinkStatus,
        attachment: &mut Attachment,
    ) -> Result<Option<String>, String> {
        match (&self.kind, attachment) {
            (Kind::Xdp(xdp), Attachment::Xdp(attachment)) => xdp.refresh(entry, link, attachment),
            // The number of queues does not matter here, and rtnetlink reports all other changes.
            (_, Attachment::Tc(attachment)) => attachment.restore(entry).map(|()| None),
            (Kind::Tc(_), Attachment::Xdp(_)) => Ok(None),
        }
    }

    fn is_unsettled(&self, attachment: &Attachment) -> bool {
        match attachment {
            Attachment::Xdp(_) => false,
            Attachment::Tc(attachment) => attachment.is_unsettled(),
        }
    }

    fn settle(&mut self, attachment: &mut Attachment) -> Result<(), String> {
        match attachment {
            Attachment::Xdp(_) => Ok(()),
            Attachment::Tc(attachment) => attachment.settle(),
        }
    }

    fn open(
        &mut self,
        entry: &PortEntry,
        link: &LinkStatus,
        attachment: &mut Attachment,
    ) -> Result<Opening, OpenError> {
        let (handover, largest_mtu, said) = match (&mut self.kind, attachment) {
            (Kind::Xdp(xdp), Attachment::Xdp(attachment)) => {
                let XdpOpening { queues, largest_mtu, said } = xdp.open(entry, link, attachment)?;
                (Handover::Xdp(queues), largest_mtu, said)
            }
            (Kind::Tc(tc), Attachment::Tc(attachment)) => {
                let TcOpening { slot, said, uplink } = tc.open(entry, link, attachment)?;
                self.opened.extend(uplink);
                (Handover::Tc(slot), u16::MAX, said)
            }
            _ => {
                return Err(OpenError::Refused(
                    "it is attached by another datapath: this is a bug in bulkhead".to_owned(),
                ));
            }
        };
        self.opened.push(NewPort { name: entry.name.clone(), handover, said });
        Ok(Opening { largest_mtu })
    }

    fn close(&mut self, entry: &PortEntry, attachment: &mut Attachment) {
        self.has_closed = true;
        let names = self.names_on(entry);
        self.opened.retain(|new| !names.contains(&new.name));
        match (&self.kind, &mut *attachment) {
            (Kind::Xdp(xdp), Attachment::Xdp(attachment)) => xdp.leave(attachment),
            (Kind::Tc(tc), Attachment::Tc(attachment)) => tc.close(attachment),
            _ => {}
        }
        // Ends the port's flows now, as it may be opened again for another pod before the workers know that.
        let ids: Vec<PortId> = names.iter().filter_map(|name| self.composer.id_of(name)).collect();
        for id in ids {
            self.composer.end_flows(id);
            self.remove(id);
            // Again, because the policy thread may have published meanwhile, and workers that still had the port may have added flows.
            self.composer.end_flows(id);
        }
        match (&mut self.kind, attachment) {
            (Kind::Xdp(xdp), Attachment::Xdp(attachment)) => xdp.end(entry, attachment),
            (Kind::Tc(tc), Attachment::Tc(attachment)) => tc.end(entry, attachment),
            _ => {}
        }
    }

    fn end(&mut self, entry: &PortEntry) {
        for id in self.names_on(entry).iter().filter_map(|name| self.composer.id_of(name)) {
            self.vswitch.end_port(id);
        }
        if let Kind::Tc(tc) = &self.kind {
            tc.forget(entry);
        }
    }
}
