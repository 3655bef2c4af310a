//! Parsing of a connection's destination.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bulkhead_control::object::{ServiceName, ServicePort, Transport};

use super::EndName;
use super::ends::is_word_for_service;

/// The destination of a connection: a pod, an address or a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A pod, or an address, which may be a Service's.
    End(EndName),
    /// A Service, by namespace and name.
    Service(ServiceTarget),
}

/// A Service and optionally one of its ports: `service/shop/web`, `service/shop/web:http`, `service/shop/web:80/TCP`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceTarget {
    /// Namespace and name.
    pub name: ServiceName,
    /// The Service's port. `None` if another option names the port, or for all ports.
    pub port: Option<ServicePortWord>,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServicePortWord {
    /// A port name.
    Name(Arc<str>),
    /// A port number, optionally with its protocol.
    Number(u16, Option<Transport>),
}

impl FromStr for Target {
    type Err = String;

    /// Parses a target; `svc` is `service`. `service/web` is the pod `web` in namespace `service`: a Service needs its namespace.
    fn from_str(text: &str) -> Result<Self, String> {
        let Some((_, rest)) = text.split_once('/').filter(|(kind, _)| is_word_for_service(kind)) else {
            return text.parse().map(Self::End);
        };
        let (name, port) = match rest.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (rest, None),
        };
        match (name.split_once('/'), port) {
            (Some((namespace, name)), port) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                let port = port.map(str::parse).transpose()?;
                Ok(Self::Service(ServiceTarget { name: ServiceName::new(namespace, name), port }))
            }
            (None, None) => text.parse().map(Self::End),
            _ => Err(format!("`{text}` is no Service; write service/NAMESPACE/NAME, or service/NAMESPACE/NAME:PORT")),
        }
    }
}

impl fmt::Display for ServiceTarget {
    /// Writes the form that parsing accepts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "service/{}", self.name)?;
        self.port.iter().try_for_each(|port| write!(f, ":{port}"))
    }
}

impl FromStr for ServicePortWord {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (port, protocol) = match text.split_once('/') {
            Some((port, protocol)) => (port, Some(protocol)),
            None => (text, None),
        };
        let wrong = || format!("`{text}` is no port; write its name, or a number as in 80 or 53/UDP");
        if port.is_empty() || (protocol.is_some() && !port.bytes().all(|byte| byte.is_ascii_digit())) {
            return Err(wrong());
        }
        if !port.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(Self::Name(port.into()));
        }
        let number = port.parse().ok().filter(|&port: &u16| port > 0).ok_or_else(wrong)?;
        let transport = |name: &str| {
            let transport = Transport::from_name(&name.to_ascii_uppercase());
            transport.ok_or_else(|| format!("unknown protocol `{name}`; write TCP, UDP or SCTP"))
        };
        Ok(Self::Number(number, protocol.map(transport).transpose()?))
    }
}

impl ServicePortWord {
    /// Whether the word means this port of a Service.
    pub fn means(&self, port: &ServicePort) -> bool {
        match self {
            Self::Name(name) => port.name == *name,
            Self::Number(number, transport) => {
                port.port == *number && transport.is_none_or(|transport| transport == port.transport)
            }
        }
    }
}

impl fmt::Display for ServicePortWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Number(number, None) => write!(f, "{number}"),
            Self::Number(number, Some(transport)) => write!(f, "{number}/{transport}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_control::object::PodName;

    use super::*;

    #[test]
    fn a_target_is_a_service_only_with_its_namespace() {
        let service = |port| Ok(Target::Service(ServiceTarget { name: ServiceName::new("x", "web"), port }));
        assert_eq!("service/x/web".parse(), service(None));
        assert_eq!("svc/x/web".parse(), service(None));
        assert_eq!("service/x/web:http".parse(), service(Some(ServicePortWord::Name("http".into()))));
        assert_eq!("service/x/web:53".parse(), service(Some(ServicePortWord::Number(53, None))));
        assert_eq!("service/x/web:53/udp".parse(), service(Some(ServicePortWord::Number(53, Some(Transport::Udp)))));
        assert_eq!("service/web".parse(), Ok(Target::End(EndName::Pod(PodName::new("service", "web")))));
        assert_eq!("10.96.0.20".parse(), Ok(Target::End(EndName::Address("10.96.0.20".parse().unwrap()))));
        for (wrong, help) in [
            ("service/web:80", "write service/NAMESPACE/NAME"),
            ("service//web", "write service/NAMESPACE/NAME"),
            ("service/x/web/80", "write service/NAMESPACE/NAME"),
            ("service/x/web:", "is no port"),
            ("service/x/web:0", "is no port"),
            ("service/x/web:65536", "is no port"),
            ("service/x/web:http/TCP", "is no port"),
            ("service/x/web:80/HTTP", "unknown protocol `HTTP`"),
            ("web", "neither namespace/pod, KIND/NAMESPACE/NAME"),
        ] {
            let error = wrong.parse::<Target>().unwrap_err();
            assert!(error.contains(help), "{wrong}: {error}");
        }
    }
}
