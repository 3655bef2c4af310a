//! A raw packet socket on an interface in a namespace: the test writes its frames and reads what arrives.

use super::netns::{Dialogue, Netns};

/// Sends the frames of an input line, in hexadecimal. On an empty line, prints the frames received since the last time.
const PROGRAM: &str = "
import socket, sys
SO_RCVBUFFORCE, SOL_PACKET, PACKET_IGNORE_OUTGOING, ALL = 33, 263, 23, 3
interface = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
interface.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
interface.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
interface.bind((sys.argv[1], ALL))
print('ready', flush=True)
for line in sys.stdin:
    words, seen = line.split(), []
    for word in words:
        interface.send(bytes.fromhex(word))
    while not words:
        try:
            seen.append(interface.recv(65536, socket.MSG_DONTWAIT).hex())
        except BlockingIOError:
            break
    print(' '.join(seen), flush=True)
";

/// A classic BPF filter for tc ingress. It drops all packets except ARP and neighbour discovery. The station's socket receives packets
/// before this filter, so only the station can answer them.
const SILENCE: &str = "9,40 0 0 12,21 6 0 2054,21 0 4 34525,48 0 0 20,21 0 2 58,48 0 0 54,53 1 0 133,6 0 0 2,6 0 0 0";

/// A raw packet socket on one interface.
#[derive(Debug)]
pub struct Station(Dialogue);

impl Station {
    /// Opens the interface. From now on, arriving frames are kept until [`Self::seen`].
    pub fn open(netns: &Netns, interface: &str) -> Self {
        let mut dialogue = Dialogue::start(netns, PROGRAM, interface);
        assert_eq!(dialogue.hear(), "ready");
        Self(dialogue)
    }

    /// Opens the interface and hides arriving packets from the namespace's kernel, except ARP and neighbour discovery.
    pub fn open_alone(netns: &Netns, interface: &str) -> Self {
        netns.exec(&format!("tc qdisc add dev {interface} clsact"));
        netns.shell(&format!("tc filter add dev {interface} ingress protocol all bpf da bytecode '{SILENCE}'"));
        Self::open(netns, interface)
    }

    /// Sends frames in order. Returns after the kernel has accepted all of them.
    pub fn send(&mut self, frames: &[Vec<u8>]) {
        if !frames.is_empty() {
            let hex = |frame: &Vec<u8>| frame.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            self.0.say(&frames.iter().map(hex).collect::<Vec<_>>().join(" "));
        }
    }

    /// Takes the frames that arrived since the last call.
    pub fn seen(&mut self) -> Vec<Vec<u8>> {
        let byte = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap();
        let frame = |word: &str| word.as_bytes().chunks(2).map(byte).collect();
        self.0.say("").split_whitespace().map(frame).collect()
    }
}

pub fn mac_of(netns: &Netns, interface: &str) -> [u8; 6] {
    let text = netns.exec(&format!("cat /sys/class/net/{interface}/address"));
    let bytes: Vec<u8> = text.trim().split(':').map(|part| u8::from_str_radix(part, 16).unwrap()).collect();
    bytes.try_into().unwrap()
}
