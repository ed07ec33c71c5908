// Visits over TLS by Go. See tests/interop/programs.py for what all such programs read and write.
// A fifth word has the write side closed before the answer begins.
package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"
)

func main() {
	pem, err := os.ReadFile(os.Args[1])
	roots := x509.NewCertPool()
	if err != nil || !roots.AppendCertsFromPEM(pem) {
		fmt.Fprintln(os.Stderr, "no authority:", err)
		os.Exit(1)
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		version := map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}[words[2]]
		config := &tls.Config{RootCAs: roots, ServerName: words[1], MinVersion: version, MaxVersion: version,
			NextProtos: []string{"http/1.1"}, ClientSessionCache: tls.NewLRUClientSessionCache(0)}
		for turn := 0; turn < 2; turn++ {
			if err := visit(config, words[0], words[3], len(words) > 4); err != nil {
				fmt.Printf("error=%v\n", err)
				break
			}
		}
		fmt.Println("end")
	}
}

func visit(config *tls.Config, port, path string, half bool) error {
	plain, err := net.Dial("tcp", "127.0.0.1:"+port)
	if err != nil {
		return err
	}
	defer plain.Close()
	plain.SetDeadline(time.Now().Add(30 * time.Second))
	conn := tls.Client(plain, config)
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", path, config.ServerName)
	if half {
		// The request is over, and said to be so, before the answer begins.
		if err := conn.CloseWrite(); err != nil {
			return err
		}
		if err := plain.(*net.TCPConn).CloseWrite(); err != nil {
			return err
		}
	}
	// A connection cut without close_notify is an error here.
	answer, err := io.ReadAll(conn)
	if err != nil {
		return err
	}
	state := conn.ConnectionState()
	head, body, _ := bytes.Cut(answer, []byte("\r\n\r\n"))
	names := map[uint16]string{tls.VersionTLS12: "1.2", tls.VersionTLS13: "1.3"}
	fmt.Printf("tls=%s resumed=%t alpn=%s certificate=%x status=%s sha256=%x\n", names[state.Version], state.DidResume,
		state.NegotiatedProtocol, sha256.Sum256(state.PeerCertificates[0].Raw), strings.Fields(string(head) + " - -")[1],
		sha256.Sum256(body))
	return nil
}
