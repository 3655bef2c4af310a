#!/usr/bin/env python3
"""Merges classic pcap files into one pcapng with named interfaces, ordered by time.

    pcapng.py OUT NAME=IN.pcap [NAME=IN.pcap ...]

Each input becomes one interface: NAME is its if_name, its link type, snap length and time
resolution are kept. A NAME with a slash is a pod ("default/frontend") whose capture holds only
what the pod sends, so its packets are marked inbound (they come in to the node's vswitch).
mergecap could do the merge but not name the interfaces.
"""

import struct
import sys

# Magic numbers of the classic format, little endian as tcpdump writes it here, and the units per second.
PCAP_MAGIC = {0xA1B2C3D4: 10**6, 0xA1B23C4D: 10**9}
# Block types and option codes of the pcapng draft (draft-ietf-opsawg-pcapng, sections 4 and 3.5).
SECTION_HEADER, INTERFACE_DESCRIPTION, ENHANCED_PACKET = 0x0A0D0D0A, 1, 6
IF_NAME, IF_TSRESOL, EPB_FLAGS = 2, 9, 2
INBOUND = struct.pack("<I", 1)


def read_pcap(path):
    """Returns (link type, snap length, units per second, [(time in units, original length, bytes)])."""
    with open(path, "rb") as file:
        data = file.read()
    if len(data) < 24:
        sys.exit(f"{path}: not a pcap file: {len(data)} bytes")
    magic, _, _, _, _, snaplen, linktype = struct.unpack_from("<IHHiIII", data)
    if magic not in PCAP_MAGIC:
        sys.exit(f"{path}: not a little-endian pcap file: magic {magic:#x}")
    units = PCAP_MAGIC[magic]
    packets, at = [], 24
    while at < len(data):
        if at + 16 > len(data):
            sys.exit(f"{path}: cut off in the header of packet {len(packets) + 1}")
        seconds, fraction, length, original = struct.unpack_from("<IIII", data, at)
        at += 16
        if at + length > len(data):
            sys.exit(f"{path}: cut off in packet {len(packets) + 1}")
        packets.append((seconds * units + fraction, original, data[at : at + length]))
        at += length
    return linktype, snaplen, units, packets


def padded(data):
    """Every body and option of pcapng fills whole 32-bit words."""
    return data + b"\0" * (-len(data) % 4)


def options(*pairs):
    """Options of a block with the closing one; none at all if there are no pairs."""
    body = b"".join(struct.pack("<HH", code, len(value)) + padded(value) for code, value in pairs)
    return body + struct.pack("<HH", 0, 0) if pairs else b""


def block(kind, body):
    """A block; its length stands at both ends."""
    length = struct.pack("<I", 12 + len(body))
    return struct.pack("<I", kind) + length + body + length


def main(out, inputs):
    """Merges the inputs ("NAME=FILE") into the file out."""
    blocks = [block(SECTION_HEADER, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))]
    merged = []
    for interface, (name, path) in enumerate(entry.split("=", 1) for entry in inputs):
        linktype, snaplen, units, packets = read_pcap(path)
        described = [(IF_NAME, name.encode())]
        if units == 10**9:
            # Without the option the resolution is microseconds.
            described.append((IF_TSRESOL, b"\x09"))
        blocks.append(block(INTERFACE_DESCRIPTION, struct.pack("<HHI", linktype, 0, snaplen) + options(*described)))
        flags = options((EPB_FLAGS, INBOUND)) if "/" in name else b""
        for time, original, data in packets:
            header = struct.pack("<IIIII", interface, time >> 32, time & 0xFFFFFFFF, len(data), original)
            merged.append((time * (10**9 // units), block(ENHANCED_PACKET, header + padded(data) + flags)))
    # The sort is stable: packets of one interface keep their order even at equal times.
    merged.sort(key=lambda packet: packet[0])
    blocks += [packet for _, packet in merged]
    with open(out, "wb") as file:
        file.write(b"".join(blocks))


if __name__ == "__main__":
    if len(sys.argv) < 3 or not all("=" in entry for entry in sys.argv[2:]):
        sys.exit("usage: pcapng.py OUT NAME=IN.pcap [NAME=IN.pcap ...]")
    main(sys.argv[1], sys.argv[2:])
