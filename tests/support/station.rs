//! An interface in a namespace as somebody has it who writes frames himself: what is sent, and what arrives.

use super::netns::{Dialogue, Netns};

/// Sends the frames of a line, or says those that have arrived since the last time, each in hexadecimal digits.
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

/// A classic BPF program at tc ingress: neighbours are answered, and everything else is dropped behind the station's socket, which
/// has it already. So nothing but the station answers.
const SILENCE: &str = "9,40 0 0 12,21 6 0 2054,21 0 4 34525,48 0 0 20,21 0 2 58,48 0 0 54,53 1 0 133,6 0 0 2,6 0 0 0";

/// See the module.
#[derive(Debug)]
pub struct Station(Dialogue);

impl Station {
    /// Opens the interface. What arrives from now on is kept.
    pub fn open(netns: &Netns, interface: &str) -> Self {
        let mut dialogue = Dialogue::start(netns, PROGRAM, interface);
        assert_eq!(dialogue.hear(), "ready");
        Self(dialogue)
    }

    /// The same, and the namespace's kernel does not see what arrives, except for questions about neighbours.
    pub fn open_alone(netns: &Netns, interface: &str) -> Self {
        netns.exec(&format!("tc qdisc add dev {interface} clsact"));
        netns.shell(&format!("tc filter add dev {interface} ingress protocol all bpf da bytecode '{SILENCE}'"));
        Self::open(netns, interface)
    }

    /// Sends frames, in order. They have left when this returns.
    pub fn send(&mut self, frames: &[Vec<u8>]) {
        if !frames.is_empty() {
            let hex = |frame: &Vec<u8>| frame.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            self.0.say(&frames.iter().map(hex).collect::<Vec<_>>().join(" "));
        }
    }

    /// The frames that have arrived since the last time.
    pub fn seen(&mut self) -> Vec<Vec<u8>> {
        let byte = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap();
        let frame = |word: &str| word.as_bytes().chunks(2).map(byte).collect();
        self.0.say("").split_whitespace().map(frame).collect()
    }
}

/// The MAC address of an interface.
pub fn mac_of(netns: &Netns, interface: &str) -> [u8; 6] {
    let text = netns.exec(&format!("cat /sys/class/net/{interface}/address"));
    let bytes: Vec<u8> = text.trim().split(':').map(|part| u8::from_str_radix(part, 16).unwrap()).collect();
    bytes.try_into().unwrap()
}
