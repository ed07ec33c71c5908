// Visits over TLS by Java. See tests/interop/programs.py for what all such programs read and write.

import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.security.KeyStore;
import java.security.MessageDigest;
import java.security.cert.CertificateFactory;
import java.util.HexFormat;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLSession;
import javax.net.ssl.SSLSocket;
import javax.net.ssl.TrustManagerFactory;

class Client {
    public static void main(String[] arguments) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null;) {
            var words = line.split(" ");
            try {
                // Sessions live as long as their context.
                var context = context(arguments[0]);
                for (int turn = 0; turn < 2; turn++) {
                    visit(context, Integer.parseInt(words[0]), words[1], words[2], words[3]);
                }
            } catch (Exception error) {
                System.out.println("error=" + error);
            }
            System.out.println("end");
        }
    }

    static SSLContext context(String authority) throws Exception {
        var trusted = KeyStore.getInstance(KeyStore.getDefaultType());
        trusted.load(null, null);
        try (var file = new FileInputStream(authority)) {
            trusted.setCertificateEntry("root", CertificateFactory.getInstance("X.509").generateCertificate(file));
        }
        var managers = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        managers.init(trusted);
        var context = SSLContext.getInstance("TLS");
        context.init(null, managers.getTrustManagers(), null);
        return context;
    }

    static void visit(SSLContext context, int port, String name, String version, String path) throws Exception {
        var plain = new Socket("127.0.0.1", port);
        plain.setSoTimeout(30000);
        try (var socket = (SSLSocket) context.getSocketFactory().createSocket(plain, name, port, true)) {
            SSLParameters parameters = socket.getSSLParameters();
            parameters.setEndpointIdentificationAlgorithm("HTTPS");
            parameters.setApplicationProtocols(new String[] {"http/1.1"});
            parameters.setProtocols(new String[] {"TLSv" + version});
            socket.setSSLParameters(parameters);
            socket.startHandshake();
            // A session carries its values on to those that resume it; there is no other way to ask.
            SSLSession session = socket.getSession();
            boolean resumed = session.getValue("seen") != null;
            session.putValue("seen", Boolean.TRUE);
            String certificate = sha256(session.getPeerCertificates()[0].getEncoded());
            var request = "GET " + path + " HTTP/1.1\r\nHost: " + name + "\r\nConnection: close\r\n\r\n";
            socket.getOutputStream().write(request.getBytes(StandardCharsets.US_ASCII));
            InputStream in = socket.getInputStream();
            // A connection cut without close_notify throws.
            byte[] answer = in.readAllBytes();
            int end = new String(answer, StandardCharsets.ISO_8859_1).indexOf("\r\n\r\n");
            String head = new String(answer, 0, end, StandardCharsets.ISO_8859_1);
            byte[] body = java.util.Arrays.copyOfRange(answer, end + 4, answer.length);
            System.out.println("tls=" + session.getProtocol().substring(4) + " resumed=" + resumed
                + " alpn=" + socket.getApplicationProtocol() + " certificate=" + certificate
                + " status=" + head.split(" ")[1] + " sha256=" + sha256(body));
        }
    }

    static String sha256(byte[] bytes) throws Exception {
        return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(bytes));
    }
}
