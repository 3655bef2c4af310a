//! Real resolvers, servers and clients: unbound, musl's resolver, and a client that keeps addresses as a Java virtual machine does.

use std::process::Command;

use super::world::{DNS, DNS6, MANY, WEB, WEB6, World, dnsmasq, unbound};
use crate::require;

/// Resolves each argument as C programs do, connects to its first address and reads a byte of its echo. Prints the names that failed.
const RESOLVE_AND_CONNECT: &str = r#"
#include <netdb.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static int reach(const char *name) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    if (getaddrinfo(name, "80", &hints, &found)) return 0;
    int to = socket(found->ai_family, SOCK_STREAM, 0);
    /* The kernel sends a SYN again after a second. */
    struct timeval limit = {.tv_usec = 900000};
    setsockopt(to, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    char byte = 'x';
    int done = !connect(to, found->ai_addr, found->ai_addrlen) && write(to, &byte, 1) == 1 && read(to, &byte, 1) == 1;
    freeaddrinfo(found);
    close(to);
    return done;
}

int main(int count, char **names) {
    for (int at = 1; at < count; at++)
        if (!reach(names[at])) puts(names[at]);
    return 0;
}
"#;

/// Resolves a name once, connects, sleeps for three times the TTL, and connects again to the kept address, as Java does: its default of
/// `networkaddress.cache.ttl` is 30 s whatever the TTL. Prints `reached` for each connection.
const KEEPING: &str = r#"
import socket, sys, time
kept = socket.getaddrinfo(sys.argv[1], 80, socket.AF_INET, socket.SOCK_STREAM)[0][4]
for wait in (0, 6):
    time.sleep(wait)
    with socket.create_connection(kept, timeout=0.9) as to:
        to.sendall(b"x")
        print("reached" if to.recv(1) == b"x" else "no echo")
"#;

#[test]
fn unbound_teaches_pods_over_udp_and_tcp() {
    require!("unbound", "dig", "socat", "ss");
    let mut world = World::with("www.example.com, '*.example.org'", "1s", unbound);
    assert!(!world.connects(WEB) && !world.connects(WEB6), "nothing is resolved yet");
    assert_eq!(world.dig(&format!("@{DNS} www.example.com A")), [WEB]);
    assert!(world.connects(WEB) && !world.connects(WEB6), "{}", world.lab.log());
    assert_eq!(world.dig(&format!("@{DNS6} wWw.eXample.com AAAA")), [WEB6]);
    assert!(world.connects(WEB6), "{}", world.lab.log());
    // The answer by UDP is truncated, and dig asks again by TCP.
    assert!(!world.connects("203.0.113.57"));
    assert_eq!(world.dig(&format!("@{DNS} big.example.org A")).len(), 100);
    for at in [0, 57, 99] {
        assert!(world.connects(&format!("203.0.113.{at}")), "{at}\n{}", world.lab.log());
    }
    world.lab.stop();
}

#[test]
fn no_first_connection_with_musl_is_denied_with_either_server() {
    require!("dnsmasq", "unbound", "musl-gcc", "socat", "ss", "unshare");
    for server in [dnsmasq, unbound] {
        let mut world = World::with("'*.many.example.org'", "1s", server);
        let [source, program] = ["reach.c", "reach"].map(|name| world.lab.path(name));
        std::fs::write(&source, RESOLVE_AND_CONNECT).unwrap();
        let compiled = Command::new("musl-gcc").args(["-static", "-o"]).args([&program, &source]).output().unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let before = world.denied();
        let names: Vec<String> = (0..MANY).map(|at| format!("n{at}.many.example.org")).collect();
        assert_eq!(
            world.resolving(&format!("timeout 60 {} {}", program.display(), names.join(" "))),
            "",
            "{}",
            world.lab.log()
        );
        assert_eq!(world.denied(), before);
        // The program does report what it does not reach.
        assert_eq!(world.resolving(&format!("{} www.example.com", program.display())), "www.example.com\n");
        assert!(world.denied() > before);
        world.lab.stop();
    }
}

#[test]
fn a_client_that_keeps_addresses_beyond_the_ttl_connects_within_the_grace_and_not_after() {
    require!("dnsmasq", "python3", "socat", "ss", "unshare");
    for (grace, reached, error) in [("30s", 2, ""), ("1s", 1, "TimeoutError")] {
        let mut world = World::with("www.example.com", grace, dnsmasq);
        let script = world.lab.path("keeping.py");
        std::fs::write(&script, KEEPING).unwrap();
        let said = world.resolving(&format!("python3 {} www.example.com", script.display()));
        assert_eq!(said.matches("reached").count(), reached, "grace {grace}: {said}");
        assert!(said.contains(error), "grace {grace}: {said}");
        world.lab.stop();
    }
}
