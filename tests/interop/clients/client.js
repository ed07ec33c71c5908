// Visits over TLS by Node. See tests/interop/programs.py for what all such programs read and write.
'use strict';
const crypto = require('crypto');
const fs = require('fs');
const readline = require('readline');
const tls = require('tls');

const ca = fs.readFileSync(process.argv[2]);
const sha256 = (bytes) => crypto.createHash('sha256').update(bytes).digest('hex');

function connect(port, servername, version, path, session) {
  return new Promise((resolve, reject) => {
    const limits = { minVersion: `TLSv${version}`, maxVersion: `TLSv${version}` };
    const socket = tls.connect({ host: '127.0.0.1', port, servername, ca, session, ALPNProtocols: ['http/1.1'], ...limits });
    const pieces = [];
    let next, facts;
    socket.setTimeout(30000, () => socket.destroy(new Error('timeout')));
    socket.on('session', (one) => { next = one; });
    socket.on('error', reject);
    socket.on('data', (piece) => pieces.push(piece));
    socket.on('secureConnect', () => {
      // Node keeps no certificate with a session.
      const certificate = socket.isSessionReused() ? '-' : sha256(socket.getPeerX509Certificate().raw);
      facts = `tls=${socket.getProtocol().slice(-3)} resumed=${socket.isSessionReused()} `
        + `alpn=${socket.alpnProtocol} certificate=${certificate}`;
      socket.write(`GET ${path} HTTP/1.1\r\nHost: ${servername}\r\nConnection: close\r\n\r\n`);
    });
    socket.on('end', () => {
      const answer = Buffer.concat(pieces);
      const end = answer.indexOf('\r\n\r\n');
      const status = answer.subarray(0, end).toString('latin1').split(' ')[1];
      console.log(`${facts} status=${status} sha256=${sha256(answer.subarray(end + 4))}`);
      socket.destroy();
      resolve(next);
    });
  });
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [port, name, version, path] = line.split(' ');
    try {
      const session = await connect(port, name, version, path);
      await connect(port, name, version, path, session);
    } catch (error) {
      console.log(`error=${error.message}`);
    }
    console.log('end');
  }
}

main();
