//! The check of server names with real TLS clients and a server of two sites at one address.

use std::time::Duration;

use super::world::{DNS, WEB, World, dnsmasq};
use crate::lab::netns::Running;
use crate::lab::{Lab, Pod};
use crate::require;

/// Makes a certificate and starts a TLS server on port 443 of the machine outside.
fn serve(lab: &Lab, more: &str) -> Running {
    let [key, certificate] = ["key.pem", "site.pem"].map(|name| lab.path(name).display().to_string());
    let outside = lab.outside.as_ref().unwrap();
    outside.exec(&format!(
        "openssl req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {certificate} -days 2 -subj /CN=www.example.com"
    ));
    outside.serve(&format!("openssl s_server -quiet -www -accept 443 -key {key} -cert {certificate} {more}"), 443)
}

/// Whether the pod gets an answer of the site from [`WEB`].
fn reaches(pod: &Pod, site: &str) -> bool {
    let args = ["-sk", "--max-time", "3", "--resolve", &format!("{site}:443:{WEB}"), &format!("https://{site}/")];
    pod.netns.command("curl", &args).output().unwrap().status.success()
}

/// Starts a world whose pods may reach port 443 of www.example.com.
fn world(check: &str) -> World {
    let settings = format!("30s, verify_server_name: {check}");
    World::with_port("www.example.com", &settings, dnsmasq, 443)
}

#[test]
fn a_client_that_names_another_site_at_an_allowed_address_is_cut_reported_or_let_through() {
    require!("dnsmasq", "dig", "curl", "openssl", "ss");
    for check in ["off", "audit", "drop"] {
        let mut world = world(check);
        let server = serve(&world.lab, "");
        assert_eq!(world.dig(&format!("@{DNS} www.example.com A")), [WEB]);
        for _ in 0..2 {
            assert!(reaches(world.client(), "www.example.com"), "{check}\n{}", world.lab.log());
        }
        assert_eq!(reaches(world.client(), "evil.example.net"), check != "drop", "{check}\n{}", world.lab.log());
        std::thread::sleep(Duration::from_millis(200));
        let summary = world.lab.summary();
        assert_eq!(summary["dropped"]["server_name"].as_u64().unwrap_or_default() > 0, check == "drop", "{summary:#}");
        let (_, told) = world.lab.ask(&["names"]);
        assert_eq!(told.contains("client has named another server or none"), check != "off", "{check}: {told}");
        assert_eq!(told.contains("client has named an allowed server"), check != "off", "{check}: {told}");
        drop(server);
        world.lab.stop();
    }
}

#[test]
fn a_server_that_asks_for_a_second_hello_is_reached() {
    require!("dnsmasq", "dig", "curl", "openssl", "ss");
    let mut world = world("drop");
    let _server = serve(&world.lab, "-tls1_3 -groups P-384");
    assert_eq!(world.dig(&format!("@{DNS} www.example.com A")), [WEB]);
    assert!(reaches(world.client(), "www.example.com"), "{}", world.lab.log());
    assert!(!reaches(world.client(), "evil.example.net"), "{}", world.lab.log());
    world.lab.stop();
}
