//! The result of `ADD`: section 5 of the specification.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::version::Version;

/// A CNI result, which plugins pass to each other and to the runtime.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Outcome {
    #[serde(rename = "cniVersion", default)]
    pub(super) version: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) interfaces: Vec<Interface>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) ips: Vec<Ip>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) routes: Vec<Route>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) dns: Option<Value>,
}

/// An interface of the node or of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Interface {
    pub(super) name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) mac: Option<String>,
    /// MTU in bytes. `None` before version 1.1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) mtu: Option<u32>,
    /// Path of the container's network namespace. `None` for the node's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) sandbox: Option<String>,
}

impl Interface {
    /// Whether the interface is in the node's namespace.
    pub(super) fn is_nodes(&self) -> bool {
        self.sandbox.as_ref().is_none_or(String::is_empty)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ip {
    /// Address family, `4` or `6`. Only in version 0.4.0, else `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) version: Option<String>,
    pub(super) address: IpNet,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) gateway: Option<IpAddr>,
    /// Index of the address's interface in the list of interfaces. `None` if the plugin gave none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) interface: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Route {
    pub(super) dst: IpNet,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) gw: Option<IpAddr>,
}

impl Outcome {
    /// Returns the result as JSON of a CNI version.
    pub(super) fn into_json(mut self, version: Version) -> String {
        self.version = version.name().to_owned();
        for ip in &mut self.ips {
            let family = if ip.address.addr().is_ipv4() { "4" } else { "6" };
            ip.version = (version == Version::V0_4).then(|| family.to_owned());
        }
        if version < Version::V1_1 {
            self.interfaces.iter_mut().for_each(|interface| interface.mtu = None);
        }
        serde_json::to_string_pretty(&self).expect("all keys are strings")
    }

    /// Returns the container's interface with this name, and its index. `None` if the result has none.
    pub(super) fn container(&self, name: &str) -> Option<(usize, &Interface)> {
        self.interfaces.iter().enumerate().find(|(_, interface)| interface.name == name && !interface.is_nodes())
    }

    /// Returns an interface's addresses. Addresses without an interface belong to the container's.
    pub(super) fn addresses(&self, interface: usize) -> Vec<IpNet> {
        let of = |ip: &&Ip| ip.interface.is_none_or(|at| at == interface);
        self.ips.iter().filter(of).map(|ip| ip.address).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn outcome() -> Outcome {
        let interface = |name: &str, sandbox: Option<&str>| Interface {
            name: name.into(),
            mac: Some("02:00:00:00:00:01".into()),
            mtu: Some(1500),
            sandbox: sandbox.map(Into::into),
        };
        let ip = |address: &str, gateway: &str| Ip {
            version: None,
            address: address.parse().unwrap(),
            gateway: Some(gateway.parse().unwrap()),
            interface: Some(1),
        };
        let route = |dst: &str, gw: &str| Route { dst: dst.parse().unwrap(), gw: Some(gw.parse().unwrap()) };
        Outcome {
            version: String::new(),
            interfaces: vec![interface("bh0123", None), interface("eth0", Some("/run/netns/x"))],
            ips: vec![ip("10.1.0.7/32", "169.254.1.1"), ip("fd00::7/128", "fe80::1")],
            routes: vec![route("0.0.0.0/0", "169.254.1.1"), route("::/0", "fe80::1")],
            dns: Some(json!({"nameservers": ["10.96.0.10"]})),
        }
    }

    #[test]
    fn a_result_of_the_newest_version_is_this() {
        let expected = r#"{
  "cniVersion": "1.1.0",
  "interfaces": [
    {
      "name": "bh0123",
      "mac": "02:00:00:00:00:01",
      "mtu": 1500
    },
    {
      "name": "eth0",
      "mac": "02:00:00:00:00:01",
      "mtu": 1500,
      "sandbox": "/run/netns/x"
    }
  ],
  "ips": [
    {
      "address": "10.1.0.7/32",
      "gateway": "169.254.1.1",
      "interface": 1
    },
    {
      "address": "fd00::7/128",
      "gateway": "fe80::1",
      "interface": 1
    }
  ],
  "routes": [
    {
      "dst": "0.0.0.0/0",
      "gw": "169.254.1.1"
    },
    {
      "dst": "::/0",
      "gw": "fe80::1"
    }
  ],
  "dns": {
    "nameservers": [
      "10.96.0.10"
    ]
  }
}"#;
        assert_eq!(outcome().into_json(Version::V1_1), expected);
    }

    #[test]
    fn older_versions_differ_as_the_specification_says() {
        let v1_0 = outcome().into_json(Version::V1_0);
        assert!(v1_0.contains("\"cniVersion\": \"1.0.0\"") && !v1_0.contains("mtu") && !v1_0.contains("\"version\""));
        let v0_4: Value = serde_json::from_str(&outcome().into_json(Version::V0_4)).unwrap();
        assert_eq!((&v0_4["ips"][0]["version"], &v0_4["ips"][1]["version"]), (&json!("4"), &json!("6")));
        let nothing = Outcome::default().into_json(Version::V1_1);
        assert_eq!(nothing, "{\n  \"cniVersion\": \"1.1.0\"\n}");
    }

    #[test]
    fn what_an_ipam_plugin_says_is_read() {
        let said = json!({"cniVersion": "0.4.0", "dns": {}, "ips": [
            {"version": "4", "address": "10.1.0.5/16", "gateway": "10.1.0.1"}], "routes": [{"dst": "0.0.0.0/0"}]});
        let outcome: Outcome = serde_json::from_value(said).unwrap();
        assert_eq!(outcome.addresses(0), ["10.1.0.5/16".parse().unwrap()]);
        assert_eq!(outcome.routes[0].gw, None);
    }

    #[test]
    fn addresses_of_other_interfaces_are_not_the_containers() {
        let mut outcome = outcome();
        outcome.ips[0].interface = Some(0);
        let (place, interface) = outcome.container("eth0").unwrap();
        assert_eq!((place, &*interface.name), (1, "eth0"));
        assert_eq!(outcome.addresses(place), ["fd00::7/128".parse().unwrap()]);
        assert!(outcome.container("bh0123").is_none(), "it is the node's");
    }
}
