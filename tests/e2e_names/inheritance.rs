//! What the successor of a killed process knows: the addresses that pods have learned, and the connections that names have allowed.

use std::net::{TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use super::world::{DNS, LONG, MANY, WEB, World, query};
use crate::lab::lasting::{answers, inside};
use crate::require;

/// The number of connections that stay open.
const OPEN: u32 = 40;

#[test]
fn what_pods_have_resolved_and_opened_by_name_outlives_killed_processes() {
    require!("dnsmasq", "dig", "socat", "ss");
    survive(10);
}

#[test]
#[ignore = "takes some minutes: `cargo test -p bulkhead --test all e2e_names::inheritance -- --ignored`"]
fn what_pods_have_resolved_and_opened_by_name_outlives_a_hundred_killed_processes() {
    require!("dnsmasq", "dig", "socat", "ss");
    survive(100);
}

/// Kills and restarts the vswitch this many times while pods resolve names. No connection and no valid name may be lost.
fn survive(kills: u32) {
    let patterns = "www.example.com, '*.example.org'";
    let mut world = World::new(patterns);
    // An open connection whose address soon expires.
    assert_eq!(world.dig(&format!("@{DNS} www.example.com A")), [WEB]);
    let mut expired = world.connect(WEB).expect("just resolved");
    assert!(answers(&mut expired));
    // Names with a long TTL, of which some have an open connection.
    let queries: Vec<String> = (0..LONG).map(|at| format!("k{at}.long.example.org A")).collect();
    assert_eq!(world.dig(&format!("@{DNS} {}", queries.join(" "))).len(), LONG as usize);
    let address = |at: u32| format!("203.0.113.{}", at + 2);
    let mut open: Vec<TcpStream> = (0..OPEN).map(|at| world.connect(&address(at)).expect("just resolved")).collect();
    std::thread::sleep(Duration::from_secs(4));
    let text = world.objects(patterns);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let socket = inside(world.client(), || UdpSocket::bind("0.0.0.0:0").unwrap());
        let is_over = &is_over;
        scope.spawn(move || load(&socket, is_over));
        let _end = End(is_over);
        for round in 0..kills {
            world.lab.kill();
            world.lab.start(&text);
            for (at, stream) in open.iter_mut().enumerate() {
                assert!(answers(stream), "round {round}: connection {at} is lost\n{}", world.lab.log());
            }
            assert_eq!(live(&world), LONG as usize, "round {round}: live names");
            let at = OPEN + round % (LONG - OPEN);
            assert!(world.connects(&address(at)), "round {round}: resolved before the kills\n{}", world.lab.log());
            assert!(answers(&mut expired), "a rule still names the name of the open connection\n{}", world.lab.log());
        }
        assert!(!world.connects(WEB), "its answer has ended");
    });
    // The names of open connections are known across processes: the connections end when no rule names them.
    world.lab.apply(&world.objects("'*.example.org'"));
    assert!(!answers(&mut expired), "no rule names it any more");
    assert!(open.iter_mut().all(answers), "a rule still names them");
    world.lab.stop();
}

/// Returns the number of the client's valid names with a long TTL.
fn live(world: &World) -> usize {
    let (_, told) = world.lab.ask(&["names", "--pod", "default/client", "--limit", "10000", "-o", "json"]);
    let told: Value = serde_json::from_str(&told).unwrap();
    let names = told["names"].as_array().unwrap().iter();
    names.filter(|row| row["name"].as_str().unwrap().ends_with(".long.example.org")).count()
}

/// Sends queries until the end, about a thousand a second.
fn load(socket: &UdpSocket, is_over: &AtomicBool) {
    let mut id = 0_u16;
    while !is_over.load(Ordering::Relaxed) {
        id = id.wrapping_add(1);
        let name = format!("n{}.many.example.org", u32::from(id) % MANY);
        // An error of an earlier datagram is reported here.
        let _ = socket.send_to(&query(id, &name), (DNS, 53));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Ends the load, also after a failed assertion.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
