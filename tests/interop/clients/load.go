// Load by Go. Counts everything, and says at the end what became of it, as JSON.
//
//	load AUTHORITY PORT NAME PARALLEL COUNT     full handshakes, half of them TLS 1.2, a HEAD request in each
//	load AUTHORITY PORT NAME PARALLEL mixed     new, resumed and kept-alive connections until stdin ends
package main

import (
	"bufio"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// When handshakes that were shown a certificate began, in seconds since 1970.
type seen struct {
	Count       int
	First, Last float64
}

type tally struct {
	mutex        sync.Mutex
	Full         int
	Resumed      int
	Requests     int
	SentAgain    int
	Failures     []string
	Certificates map[string]*seen
}

var (
	result = tally{Certificates: map[string]*seen{}, Failures: []string{}}
	ending atomic.Bool
	port   string
)

func main() {
	pem, err := os.ReadFile(os.Args[1])
	roots := x509.NewCertPool()
	if err != nil || !roots.AppendCertsFromPEM(pem) {
		fmt.Fprintln(os.Stderr, "no authority:", err)
		os.Exit(1)
	}
	port = os.Args[2]
	parallel, _ := strconv.Atoi(os.Args[4])
	base := &tls.Config{RootCAs: roots, ServerName: os.Args[3], MinVersion: tls.VersionTLS12}
	var all sync.WaitGroup
	run := func(body func()) {
		all.Add(1)
		go func() { defer all.Done(); body() }()
	}
	if os.Args[5] == "mixed" {
		go func() { io.Copy(io.Discard, os.Stdin); ending.Store(true) }()
		for one := 0; one < parallel; one++ {
			config := base.Clone()
			keep := one%3 == 2
			if one%3 == 1 {
				config.ClientSessionCache = tls.NewLRUClientSessionCache(0)
			}
			run(func() {
				for !ending.Load() {
					client(config, keep)
				}
			})
		}
	} else {
		count, _ := strconv.Atoi(os.Args[5])
		var next atomic.Int64
		for one := 0; one < parallel; one++ {
			run(func() {
				for turn := next.Add(1); turn <= int64(count); turn = next.Add(1) {
					config := base.Clone()
					config.MinVersion = tls.VersionTLS12 + uint16(turn%2)
					config.MaxVersion = config.MinVersion
					client(config, false)
				}
			})
		}
	}
	all.Wait()
	json.NewEncoder(os.Stdout).Encode(&result)
}

// One connection with one request, or with as many as it lives for.
func client(config *tls.Config, keep bool) {
	began := time.Now()
	plain, err := net.Dial("tcp", "127.0.0.1:"+port)
	if err != nil {
		fail("connect", err)
		return
	}
	defer plain.Close()
	plain.SetDeadline(began.Add(60 * time.Second))
	conn := tls.Client(plain, config)
	if err := conn.Handshake(); err != nil {
		fail("handshake", err)
		return
	}
	note(conn.ConnectionState(), began)
	answers := bufio.NewReader(conn)
	for turn := 0; turn == 0 || keep && !ending.Load(); turn++ {
		plain.SetDeadline(time.Now().Add(60 * time.Second))
		kept, err := request(conn, answers, config.ServerName, keep)
		if err != nil && turn > 0 && err == errNoAnswer {
			// RFC 9112 section 9.3.1: the server may close while it is idle, just when a request is sent; the
			// next connection is the second attempt.
			result.mutex.Lock()
			result.SentAgain++
			result.mutex.Unlock()
			return
		}
		if err != nil {
			fail(fmt.Sprintf("request %d", turn), err)
			return
		}
		result.mutex.Lock()
		result.Requests++
		result.mutex.Unlock()
		if !kept {
			break
		}
	}
	conn.Close()
}

var errNoAnswer = fmt.Errorf("closed without an answer")

func request(conn *tls.Conn, answers *bufio.Reader, name string, keep bool) (bool, error) {
	ending := "Connection: close\r\n"
	if keep {
		ending = ""
	}
	method := "GET"
	if !keep {
		method = "HEAD"
	}
	if _, err := fmt.Fprintf(conn, "%s /small.txt HTTP/1.1\r\nHost: %s\r\n%s\r\n", method, name, ending); err != nil {
		return false, errNoAnswer
	}
	if _, err := answers.Peek(1); err != nil {
		return false, errNoAnswer
	}
	answer, err := http.ReadResponse(answers, &http.Request{Method: method})
	if err != nil {
		return false, err
	}
	if answer.StatusCode != 200 {
		return false, fmt.Errorf("status %d", answer.StatusCode)
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return !answer.Close, err
}

func note(state tls.ConnectionState, began time.Time) {
	sum := fmt.Sprintf("%x", sha256.Sum256(state.PeerCertificates[0].Raw))
	at := float64(began.UnixNano()) / 1e9
	result.mutex.Lock()
	defer result.mutex.Unlock()
	if state.DidResume {
		// What it shows is the certificate of the session it resumes.
		result.Resumed++
		return
	}
	result.Full++
	one := result.Certificates[sum]
	if one == nil {
		one = &seen{First: at, Last: at}
		result.Certificates[sum] = one
	}
	one.Count++
	one.First, one.Last = min(one.First, at), max(one.Last, at)
}

func fail(what string, err error) {
	result.mutex.Lock()
	defer result.mutex.Unlock()
	result.Failures = append(result.Failures, fmt.Sprintf("%s: %v", what, err))
	// A server that is gone is not asked millions of times.
	if len(result.Failures) > 100 {
		ending.Store(true)
	}
}
