//! Connections of real programs survive a restart of the vswitch, and a policy that denies them for a while.

use crate::require;
use std::time::{Duration, Instant};

use crate::lab::netns::{Dialogue, Running, eventually};
use crate::lab::{Lab, policy};

/// Opens connections to the argument's address, and sends on each for every line. Prints whether all were answered.
const CLIENT: &str = "
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
peers = [socket.create_connection((sys.argv[1], 7777), timeout=30) for _ in range(200)]
print('connected', flush=True)
for line in sys.stdin:
    for peer in peers:
        peer.sendall(b'x')
    print('answered', sum(len(peer.recv(1)) for peer in peers), flush=True)
";

const SERVER: &str = "
import asyncio
async def serve(reader, writer):
    while data := await reader.read(100):
        writer.write(data)
async def main():
    server = await asyncio.start_server(serve, '0.0.0.0', 7777, backlog=1024)
    await server.serve_forever()
asyncio.run(main())
";

/// A policy: the server accepts only packets from pods with this label. The client accepts nothing, so answers need a session.
fn only(app: &str) -> String {
    let from = format!("from: [{{podSelector: {{matchLabels: {{app: {app}}}}}}}]");
    let server =
        format!("{{podSelector: {{matchLabels: {{app: server}}}}, policyTypes: [Ingress], ingress: [{{{from}}}]}}");
    let client = "{podSelector: {matchLabels: {app: client}}, policyTypes: [Ingress]}";
    policy("server", &server) + &policy("client", client)
}

fn connected() -> (Lab, Running, Dialogue) {
    let mut lab = Lab::new();
    lab.pod("client", "{app: client}");
    lab.pod("server", "{app: server}");
    lab.start(&only("client"));
    let mut command = lab.get("server").netns.command("python3", &["-c", SERVER]);
    let server = Running::start(&mut command);
    eventually("the server listens", || lab.get("server").netns.exec("ss -Htln").contains(":7777 "));
    let mut client = Dialogue::start(&lab.get("client").netns, CLIENT, &lab.get("server").v4);
    assert_eq!(client.hear(), "connected");
    assert_eq!(client.say("before"), "answered 200");
    (lab, server, client)
}

#[test]
fn connections_outlive_a_process_that_is_killed_and_one_that_is_told_to_end() {
    require!("python3", "ss");
    let (mut lab, _server, mut client) = connected();
    for killed in [true, false] {
        if killed {
            lab.kill();
        } else {
            lab.stop();
        }
        let gone = Instant::now();
        lab.start(&only("client"));
        assert_eq!(client.say("after"), "answered 200", "killed: {killed}");
        println!("killed: {killed}; answered again {:.1?} after the new process was started", gone.elapsed());
        assert!(lab.log().contains("adopted 200 sessions of the previous process"), "{}", lab.log());
    }
    let summary = lab.stop();
    assert_eq!(summary["sessions"]["adopted"], 200, "{summary:#}");
    assert_eq!(summary["sessions"]["created"], 0, "no session was opened again: {summary:#}");
}

#[test]
fn connections_that_were_adopted_are_judged_by_the_policy_of_the_moment_and_go_on_when_it_allows_them() {
    require!("python3", "ss");
    let (mut lab, _server, mut client) = connected();
    lab.kill();
    lab.start(&only("nobody"));
    let answer = std::thread::scope(|scope| {
        let answer = scope.spawn(|| client.say("cut"));
        // Time for several retransmissions on each connection.
        std::thread::sleep(Duration::from_secs(3));
        assert!(!answer.is_finished(), "what is cut is not answered");
        lab.apply(&only("client"));
        answer.join().unwrap()
    });
    assert_eq!(answer, "answered 200");
    let summary = lab.stop();
    let sessions = &summary["sessions"];
    assert_eq!((&sessions["restored"], &sessions["created"]), (&200.into(), &0.into()), "{summary:#}");
}
