//! Frames that pods build themselves: with VLAN tags, with another pod's MAC address, longer than the link's MTU.

use crate::require;
use std::net::Ipv4Addr;

use crate::lab::lasting::{PATIENCE, answers, connect, echo, settle};
use crate::lab::netns::{Dialogue, eventually};
use crate::lab::station::{Station, mac_of};
use crate::lab::{Lab, Pod, policy};
use bulkhead_dataplane::wire::{icmpv4, ipv4};

fn lab_of(pods: &[&str]) -> Lab {
    let mut lab = Lab::new();
    for name in pods {
        lab.pod(name, &format!("{{app: {name}}}"));
    }
    lab
}

/// An echo request between two pods with `data` bytes of payload, from the IP header on.
fn echo_request(lab: &Lab, from: &str, to: &str, data: usize) -> Vec<u8> {
    let address = |pod: &str| lab.get(pod).v4.parse::<Ipv4Addr>().unwrap();
    let mut message = vec![0x5a; icmpv4::HEADER_LEN + data];
    icmpv4::Repr::echo(icmpv4::kind::ECHO_REQUEST, 9, 9).emit(&mut message);
    let (source, destination, payload_len) = (address(from), address(to), message.len());
    let mut packet = vec![0; ipv4::MIN_HEADER_LEN + payload_len];
    let header = ipv4::Repr { source, destination, protocol: 1, hop_limit: 64, tos: 0, payload_len };
    header.emit(&mut packet).copy_from_slice(&message);
    packet
}

/// A frame from a pod to its gateway with these VLAN tags: type and number.
fn frame(lab: &Lab, pod: &str, tags: &[(u16, u16)], packet: &[u8]) -> Vec<u8> {
    let pod = lab.get(pod);
    let (own, gateway) = (mac_of(&pod.netns, "eth0"), mac_of(&lab.node, &pod.interface));
    let tags = tags.iter().flat_map(|(kind, number)| [kind.to_be_bytes(), number.to_be_bytes()].concat());
    [&gateway[..], &own, &tags.collect::<Vec<u8>>(), &[8, 0], packet].concat()
}

#[test]
fn frames_with_vlan_tags_of_a_pods_own_go_nowhere_and_are_all_counted_whatever_port_they_name() {
    require!("ping", "python3");
    const CUSTOMER: u16 = 0x8100;
    const SERVICE: u16 = 0x88a8;
    let mut lab = lab_of(&["a", "b", "c"]);
    let closed = policy("b", "{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress]}");
    lab.start(&closed);
    for (from, to) in [("a", "c"), ("b", "a"), ("c", "a")] {
        // Beside other tests, the first answer may take longer than a second.
        eventually(&format!("{from} reaches {to}"), || lab.pings(from, &lab.get(to).v4));
    }
    let (mut a, mut b, mut c) = {
        let open = |pod: &str| Station::open(&lab.get(pod).netns, "eth0");
        (open("a"), open("b"), open("c"))
    };
    let mut frames = Vec::new();
    for to in ["b", "c"] {
        // The trunk's own tags are service tags with a port's number; these tags include the numbers of all pods. The longest frames are
        // the maximum of a pod's kernel, which reserves space for customer tags only.
        for (kind, longest) in [(SERVICE, 1468), (CUSTOMER, 1472)] {
            for data in [8, longest] {
                let packet = echo_request(&lab, "a", to, data);
                frames.extend((0..6).map(|number| frame(&lab, "a", &[(kind, number)], &packet)));
            }
        }
        let packet = echo_request(&lab, "a", to, 8);
        for number in 1..5 {
            frames.push(frame(&lab, "a", &[(SERVICE, number), (CUSTOMER, 5)], &packet));
            frames.push(frame(&lab, "a", &[(SERVICE, 1), (SERVICE, number)], &packet));
        }
    }
    for frames in frames.chunks(16) {
        a.send(frames);
    }
    // A later packet on the same port has arrived, so the tagged ones would have too.
    eventually("a reaches c", || lab.pings("a", &lab.get("c").v4));
    let echoes =
        |seen: Vec<Vec<u8>>| seen.iter().filter(|frame| frame.windows(8).any(|part| part == [0x5a; 8])).count();
    assert_eq!((echoes(b.seen()), echoes(c.seen())), (0, 0));
    let summary = lab.stop();
    assert_eq!(summary["dropped"]["vlan_tagged"], frames.len(), "{summary:#}");
    // The tagged frames plus two echo requests and two answers. The count would be lower if frames were counted for another port.
    let received = summary["ports"]["default/a"]["received"].as_u64().unwrap();
    assert!(received >= frames.len() as u64 + 4, "{received} frames of a's: {summary:#}");
}

#[test]
fn pods_with_the_same_mac_address_reach_each_other_as_policy_says() {
    require!("ping");
    let mut lab = lab_of(&["a", "b", "c"]);
    for pod in &lab.pods {
        pod.netns.ip("link set eth0 address 02:00:00:00:00:07");
    }
    let from = "from: [{podSelector: {matchLabels: {app: a}}}]";
    let spec = format!("{{podSelector: {{matchLabels: {{app: b}}}}, policyTypes: [Ingress], ingress: [{{{from}}}]}}");
    lab.start(&policy("b", &spec));
    for (from, to, allowed) in
        [("a", "b", true), ("b", "c", true), ("c", "a", true), ("a", "c", true), ("c", "b", false)]
    {
        let Pod { v4, v6, .. } = lab.get(to);
        for address in [v4, v6] {
            if allowed {
                eventually(&format!("{from} reaches {address}"), || lab.pings(from, address));
            } else {
                assert!(!lab.pings(from, address), "{from} to {address}");
            }
        }
    }
    for (to, port) in [("b", 7030), ("c", 7031)] {
        echo(lab.get(to), port);
        let mut stream = connect(lab.get("a"), lab.get(to), port, PATIENCE).unwrap();
        settle(&mut stream);
        assert!(answers(&mut stream));
    }
    assert!(connect(lab.get("c"), lab.get("b"), 7030, PATIENCE).is_err());
    let summary = lab.stop();
    assert!(summary["flow_cache"]["forwarded"].as_u64() > Some(50), "the kernel has them: {summary:#}");
}

/// Prints for each line the number of UDP datagrams received since the last line, and the length of the longest in bytes.
const RECEIVER: &str = "
import socket, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind((sys.argv[1], 7040))
server.setblocking(False)
print('ready', flush=True)
for line in sys.stdin:
    sizes = [0]
    while True:
        try:
            sizes.append(len(server.recv(65536)))
        except BlockingIOError:
            break
    print(len(sizes) - 1, max(sizes), flush=True)
";

/// Sends for each line a number of datagrams of one size, in one call that the kernel segments.
const SENDER: &str = "
import socket, sys
UDP_SEGMENT, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE = 103, 10, 3
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.connect((sys.argv[1], 7040))
# Sets the DF bit and ignores the path MTU.
client.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
print('ready', flush=True)
for line in sys.stdin:
    size, count = map(int, line.split())
    client.setsockopt(socket.SOL_UDP if hasattr(socket, 'SOL_UDP') else 17, UDP_SEGMENT, size if count > 1 else 0)
    # The error of an earlier packet is returned once, by the next call.
    for _ in range(3):
        try:
            client.send(b'x' * size * count)
            print('sent', flush=True)
            break
        except OSError as error:
            last = error
    else:
        print(last, flush=True)
";

#[test]
fn packets_and_segments_that_a_way_does_not_carry_do_not_arrive_though_the_kernel_has_their_flow() {
    require!("ping", "python3");
    const LARGE: usize = 1372;
    let mut lab = lab_of(&["a", "b"]);
    // The path to b carries 1300 bytes, the path to a 1500, and a's own MTU is 9000.
    lab.get("b").netns.ip("link set eth0 mtu 1300");
    lab.node.ip(&format!("link set {} mtu 1300", lab.get("b").interface));
    lab.get("a").netns.ip("link set eth0 mtu 9000");
    lab.start("");
    eventually("a reaches b", || lab.pings("a", &lab.get("b").v4));
    let address = lab.get("b").v4.clone();
    let mut receiver = Dialogue::start(&lab.get("b").netns, RECEIVER, &address);
    assert_eq!(receiver.hear(), "ready");
    let mut sender = Dialogue::start(&lab.get("a").netns, SENDER, &address);
    assert_eq!(sender.hear(), "ready");
    let mut try_sizes = |sizes: &[(usize, usize)]| {
        for (size, count) in sizes {
            assert_eq!(sender.say(&format!("{size} {count}")), "sent");
            std::thread::sleep(std::time::Duration::from_millis(3));
        }
        let said = receiver.say("");
        let (count, longest) = said.split_once(' ').unwrap();
        (count.parse::<usize>().unwrap(), longest.parse::<usize>().unwrap())
    };
    // Send until the kernel has the flow.
    let (arrived, longest) = try_sizes(&[(100, 1); 100]);
    assert!((95..=100).contains(&arrived) && longest == 100, "{arrived} of 100, up to {longest} bytes");
    assert_eq!(try_sizes(&[(LARGE, 1), (LARGE, 8), (8_000, 1), (4_000, 4), (1_273, 1)]), (0, 0));
    // Datagrams and segments that fit arrive complete.
    assert_eq!(try_sizes(&[(1_272, 1), (1_272, 8), (100, 20)]), (29, 1_272));
    let summary = lab.stop();
    assert!(summary["flow_cache"]["forwarded"].as_u64() > Some(20), "{summary:#}");
    assert!(summary["dropped"]["packet_too_big"].as_u64() >= Some(3), "{summary:#}");
}
