"""Runs the command of its arguments in a terminal and plays its user."""
import fcntl, os, pty, re, select, signal, struct, sys, termios, time

pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
seen = b""


def size(rows, columns):
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def read(limit):
    global seen
    if select.select([terminal], [], [], limit)[0]:
        try:
            seen += os.read(terminal, 65536)
        except OSError:
            return False
    return True


def until(pattern, limit=20, again=None):
    end = time.time() + limit
    while not re.search(pattern, seen):
        if time.time() > end:
            sys.exit("%r did not come in time, but %r" % (pattern, seen))
        if not read(0.5) and not re.search(pattern, seen):
            sys.exit("the end came before %r: %r" % (pattern, seen))
        if again and select.select([terminal], [], [], 0)[0] == []:
            say(again)


def say(line):
    os.write(terminal, line)


size(30, 90)
until(rb"[#$] ")
say(b"tty && stty size\n")
# The first size is sent beside the command's start.
until(rb"/dev/pts/\d+", 20)
until(rb"30 90", 20, b"stty size\n")
size(41, 77)
until(rb"41 77", 20, b"stty size\n")
say(b"sleep 1000; echo code=$?\n")
time.sleep(0.5)
say(b"\x03")
until(rb"code=130|\^C\r\n[^\n]*[#$] ")
say(b"echo still-$((40+2))\n")
until(rb"still-42")
say(b"exit 3\n")
while read(10):
    pass
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
if code != 3:
    sys.exit("exit code %d instead of 3: %r" % (code, seen))
