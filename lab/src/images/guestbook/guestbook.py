"""A guestbook with the HTTP interface of the Kubernetes example's front end.

    /                                                 the page
    /guestbook.php?cmd=set&key=messages&value=TEXT    {"message": "Updated"}
    /guestbook.php?cmd=get&key=messages               {"data": "TEXT"}

Writes go to the leader's Service, reads to the followers'. GET_HOSTS_FROM says how they are found: `dns` by name, `env` by the
variables that a pod gets for each Service.
"""

import html
import json
import os
import signal
import socket
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

# The example has had several names for the two: the first one that is there is used.
LEADERS = ["redis-master", "redis-leader"]
FOLLOWERS = ["redis-replica", "redis-slave", "redis-follower"]
PORT = 6379
# Seconds for one step of a connection to redis.
LIMIT = 5


class RedisError(Exception):
    """Redis could not be reached or refused the command."""


def addresses(names):
    """Where a Service may be, best first."""
    if os.environ.get("GET_HOSTS_FROM", "dns") != "env":
        return names
    variables = [name.upper().replace("-", "_") + "_SERVICE_HOST" for name in names]
    found = [os.environ[name] for name in variables if os.environ.get(name)]
    if not found:
        raise RedisError(f"GET_HOSTS_FROM is env, but none of {', '.join(variables)} is set")
    return found


def connect(names):
    problem = None
    for host in addresses(names):
        try:
            return socket.create_connection((host, PORT), timeout=LIMIT)
        except socket.gaierror as error:
            problem = f"no address for {host}: {error}"
        except OSError as error:
            raise RedisError(f"{host}: {error}") from error
    raise RedisError(problem)


def reply(stream):
    """One answer of the redis protocol; None for a key that is not there."""
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        raise RedisError("the connection was closed")
    kind, rest = line[:1], line[1:-2].decode()
    if kind == b"-":
        raise RedisError(rest)
    if kind in (b"+", b":"):
        return rest
    if kind == b"$":
        length = int(rest)
        return None if length < 0 else stream.read(length + 2)[:-2].decode(errors="replace")
    raise RedisError(f"an answer of an unknown kind: {line!r}")


def redis(names, *words):
    encoded = [word.encode() for word in words]
    request = b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded)
    try:
        with connect(names) as connection:
            connection.sendall(request)
            with connection.makefile("rb") as stream:
                return reply(stream)
    except OSError as error:
        raise RedisError(str(error)) from error


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        url = urlsplit(self.path)
        if url.path in ("/", "/index.html"):
            self.answer(200, "text/html; charset=utf-8", PAGE)
        elif url.path == "/healthz":
            self.answer(200, "text/plain", "ok\n")
        elif url.path == "/guestbook.php":
            self.guestbook({name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()})
        else:
            self.answer(404, "text/html; charset=utf-8", f"<h1>Not Found</h1><p>{html.escape(url.path)}</p>\n")

    do_HEAD = do_GET

    def guestbook(self, query):
        command, key = query.get("cmd"), query.get("key")
        if command not in ("get", "set") or not key or (command == "set" and "value" not in query):
            self.answer(400, "application/json", {"error": "say ?cmd=get&key=KEY or ?cmd=set&key=KEY&value=TEXT"})
            return
        try:
            if command == "set":
                redis(LEADERS, "SET", key, query["value"])
                self.answer(200, "application/json", {"message": "Updated"})
            else:
                self.answer(200, "application/json", {"data": redis(FOLLOWERS, "GET", key) or ""})
        except RedisError as error:
            print(f"guestbook: {command} {key}: {error}", file=sys.stderr, flush=True)
            self.answer(500, "application/json", {"error": str(error)})

    def answer(self, status, kind, body):
        data = (json.dumps(body) if isinstance(body, dict) else body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        # Who answered: with several copies behind a Service one wants to see it.
        self.send_header("X-Pod", socket.gethostname())
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


PAGE = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>Guestbook</title></head>
<body>
<h1>Guestbook</h1>
<form id="form"><input id="text" placeholder="Messages" autofocus> <button>Submit</button></form>
<ul id="messages"></ul>
<script>
const at = "guestbook.php?key=messages&cmd=";
let value = "";
function show() {
  const list = document.getElementById("messages");
  list.replaceChildren(...value.split(",").filter(Boolean).map(text => {
    const item = document.createElement("li");
    item.textContent = text;
    return item;
  }));
}
const load = () => fetch(at + "get").then(answer => answer.json()).then(answer => { value = answer.data || ""; show(); });
document.getElementById("form").addEventListener("submit", event => {
  event.preventDefault();
  const text = document.getElementById("text");
  value += "," + text.value;
  text.value = "";
  fetch(at + "set&value=" + encodeURIComponent(value)).then(show);
});
load();
</script>
</body>
</html>
"""


def main():
    # As process 1 of a container, which has no default answer to it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = ThreadingHTTPServer(("", int(os.environ.get("PORT", "80"))), Handler)
    server.daemon_threads = True
    print(f"guestbook: listening on port {server.server_port}", flush=True)
    server.serve_forever()


main()
