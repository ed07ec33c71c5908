"""Visits over TLS by Python. See tests/interop/programs.py for what all such programs read and write."""

import hashlib
import socket
import ssl
import sys


def visit(authority, port, name, version, path):
    context = ssl.create_default_context(cafile=authority)
    context.minimum_version = context.maximum_version = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}[version]
    context.set_alpn_protocols(["http/1.1"])
    session = None
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as plain:
            # A connection cut without close_notify is an error here.
            tls = context.wrap_socket(plain, server_hostname=name, session=session, suppress_ragged_eofs=False)
            with tls:
                tls.sendall(f"GET {path} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode())
                answer = bytearray()
                while piece := tls.recv(65536):
                    answer += piece
                session = tls.session
                head, _, body = bytes(answer).partition(b"\r\n\r\n")
                print(f"tls={tls.version()[-3:]} resumed={str(tls.session_reused).lower()} "
                      f"alpn={tls.selected_alpn_protocol()} "
                      f"certificate={hashlib.sha256(tls.getpeercert(binary_form=True)).hexdigest()} "
                      f"status={head.split()[1].decode()} sha256={hashlib.sha256(body).hexdigest()}", flush=True)


for line in sys.stdin:
    port, name, version, path = line.split()
    try:
        visit(sys.argv[1], int(port), name, version, path)
    except OSError as error:
        print(f"error={error}", flush=True)
    print("end", flush=True)
