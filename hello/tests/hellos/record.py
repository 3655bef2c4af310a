#!/usr/bin/env python3
"""Records the first bytes that clients send to www.example.com: a file for each client, a line for each datagram or a line for TCP.

Nothing leaves this machine: the clients connect to a listener on port 4433.
"""

import os
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

HOST, PORT = "127.0.0.1", 4433
URL = "https://www.example.com/"


def record(name, command, is_udp=False):
    """Runs a client until its first bytes are there, and writes them."""
    kind = socket.SOCK_DGRAM if is_udp else socket.SOCK_STREAM
    with socket.socket(socket.AF_INET, kind) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, PORT))
        listener.settimeout(30)
        if not is_udp:
            listener.listen()
        null = subprocess.DEVNULL
        client = subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True)
        try:
            lines = datagrams(listener) if is_udp else [listener.accept()[0].recv(65536)]
        finally:
            os.killpg(client.pid, signal.SIGKILL)
            client.wait()
    path = Path(__file__).with_name(name + ".hex")
    path.write_text("".join(line.hex() + "\n" for line in lines))


def datagrams(listener):
    """Returns the datagrams that the client sends at once."""
    found = [listener.recv(65536)]
    listener.settimeout(0.1)
    try:
        while True:
            found.append(listener.recv(65536))
    except TimeoutError:
        return found


record("openssl", ["openssl", "s_client", "-connect", f"{HOST}:{PORT}", "-servername", "www.example.com"])
record("curl", ["curl", "--connect-to", f"www.example.com:443:{HOST}:{PORT}", URL])
record("node", ["node", "-e", f'require("tls").connect({PORT}, "{HOST}", {{ servername: "www.example.com" }})'])
with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
    chromium = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}"]
    chromium.append(f"--host-resolver-rules=MAP www.example.com:443 {HOST}:{PORT}")
    record("chromium", [*chromium, URL])
    record("chromium.quic", [*chromium, "--enable-quic", "--origin-to-force-quic-on=www.example.com:443", URL], is_udp=True)
