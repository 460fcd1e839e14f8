"""The Python client: exec, with and without a terminal, and port-forward."""
import hashlib, json, os, sys, time
from kubernetes import client, config
from kubernetes.stream import portforward, stream

config.load_kube_config()
api = client.CoreV1Api()
space, size = sys.argv[1], int(sys.argv[2])


def check(fine, *what):
    if not fine:
        sys.exit("failed: %r" % (what,))


def run(command, **more):
    options = dict(stderr=True, stdin=False, stdout=True, tty=False, _preload_content=False)
    options.update(more)
    return stream(api.connect_get_namespaced_pod_exec, "box", space, command=command, **options)


ws = run(["sh", "-c", "echo out; echo err >&2; exit 7"])
ws.run_forever(timeout=20)
check((ws.read_stdout(), ws.read_stderr(), ws.returncode) == ("out\n", "err\n", 7), "plain")

ws = run(["sh", "-c", "read a; echo got $a; exit 0"], stdin=True)
ws.write_stdin("word\n")
ws.run_forever(timeout=20)
check((ws.read_stdout(), ws.returncode) == ("got word\n", 0), "stdin")

ws = run(["sh", "-c", "sleep 1; stty size; tty"], stdin=True, tty=True, stderr=False)
ws.write_channel(4, json.dumps({"Height": 33, "Width": 99}))
ws.run_forever(timeout=20)
said = ws.read_stdout()
check("33 99" in said and "/dev/pts/" in said and ws.returncode == 0, "terminal", said)

begun = time.time()
command = "head -c %d /dev/urandom >/tmp/sent; cat /tmp/sent; sha256sum </tmp/sent >&2; rm /tmp/sent"
ws = run(["sh", "-c", command % size], binary=True)
# One frame for each update: while more frames are at hand an update goes on reading, and joins them in quadratic time.
ws._frames_immediately_available = lambda: False
digest, count, stderr = hashlib.sha256(), 0, b""
while True:
    ws.update(timeout=10)
    # Reading a channel that holds nothing would update again.
    if 1 in ws._channels:
        data = ws.read_stdout()
        digest.update(data)
        count += len(data)
    if 2 in ws._channels:
        stderr += ws.read_stderr()
    if not ws.is_open():
        break
check(count == size and ws.returncode == 0, "output", count, size)
check(stderr.decode().split()[0] == digest.hexdigest(), "output's digest", stderr)
print("python: %d MB out %.0f MB/s" % (size / 1e6, size / 1e6 / (time.time() - begun)))

begun = time.time()
ws = run(["sh", "-c", "head -c %d | sha256sum" % size], stdin=True, binary=True)
piece, left = os.urandom(1 << 16), size
digest = hashlib.sha256()
while left:
    now = piece[:left]
    ws.write_stdin(now)
    digest.update(now)
    left -= len(now)
ws.run_forever(timeout=60)
said = ws.read_stdout(timeout=0).decode()
check(said.split()[0] == digest.hexdigest(), "input", said)
print("python: %d MB in %.0f MB/s" % (size / 1e6, size / 1e6 / (time.time() - begun)))

forward = portforward(api.connect_get_namespaced_pod_portforward, "web", space, ports="8080")
socket = forward.socket(8080)
socket.setblocking(True)
socket.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
answer = b""
while True:
    data = socket.recv(4096)
    if not data:
        break
    answer += data
check(answer.startswith(b"HTTP/1.1 200"), "port-forward", answer)
check(forward.error(8080) is None, "port-forward's error", forward.error(8080))
