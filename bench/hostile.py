#!/usr/bin/env python3
"""What hostile clients cost a proxy, and a neighbour that shares it.

A pair of proxies as in run.py. An attacker beside the client sends one kind of flood after another through the client's
proxy, reconnecting whenever it is cut off, while a neighbour asks at a fixed rate on connections of its own. For each flood:
how far the resident memory of either proxy grew, what the neighbour lost, and how the attacker's connections ended.

Needs root, iproute2, util-linux and Python 3 (its standard library only); the programs are built by `cargo build --bins`.

    python3 bench/hostile.py --bin target/release --markdown bench/hostile.md
"""
import argparse, json, os, pathlib, re, selectors, shutil, signal, socket, struct, subprocess, sys, tempfile, threading, time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import run as bench

PREFACE = b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'
DATA, HEADERS, PRIORITY, RST, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 2, 3, 4, 6, 7, 8, 9
CODES = {0: 'NO_ERROR', 1: 'PROTOCOL_ERROR', 3: 'FLOW_CONTROL_ERROR', 11: 'ENHANCE_YOUR_CALM'}


def frame(kind, flags, stream, payload=b''):
    return struct.pack('>I', len(payload))[1:] + bytes([kind, flags]) + struct.pack('>I', stream) + payload


def text(value):
    value = value.encode()
    assert len(value) < 127
    return bytes([len(value)]) + value


def block(*more, method='GET', path='/'):
    fields = [(':method', method), (':scheme', 'http'), (':authority', 'hostile'), (':path', path), *more]
    return b''.join(b'\0' + text(name) + text(value) for name, value in fields)


def setting(key, value):
    return frame(SETTINGS, 0, 0, struct.pack('>HI', key, value))


# --- floods: what is sent first, and what is sent on and on; `n` counts from 0 on each connection

OPEN = frame(HEADERS, 4, 1, block(method='POST'))
BOMB = block() + b'\x40' + text('x') + text('') + b'\xbe' * 200


def requests(n, count, one):
    return b''.join(one(2 * (n * count + i) + 1) for i in range(count))


FLOODS = {
    'rapid reset': (b'', lambda n: requests(n, 50, lambda s: frame(HEADERS, 5, s, block()) + frame(RST, 0, s, b'\0\0\0\x08'))),
    'made-you-reset': (b'', lambda n: requests(n, 50, lambda s: frame(HEADERS, 5, s, block()) + frame(WINDOW, 0, s, b'\x7f\xff\xff\xff'))),
    'CONTINUATION without end': (frame(HEADERS, 1, 1, block()), lambda n: frame(CONTINUATION, 0, 1, b'\0\x01x\x7f\x80\x1f' + b'y' * 4095) * 4),
    'empty CONTINUATION': (frame(HEADERS, 1, 1, block()), lambda n: frame(CONTINUATION, 0, 1) * 200),
    'HPACK bombs, windows shut': (setting(4, 0), lambda n: requests(n, 20, lambda s: frame(HEADERS, 5, s, BOMB))),
    'responses that are not read': (setting(4, 0), lambda n: requests(n, 20, lambda s: frame(HEADERS, 5, s, block()))),
    'empty DATA': (OPEN, lambda n: frame(DATA, 0, 1) * 200),
    'PING': (b'', lambda n: frame(PING, 0, 0, b'12345678') * 200),
    'SETTINGS': (b'', lambda n: setting(4, 65_535) * 200),
    'PRIORITY': (b'', lambda n: frame(PRIORITY, 0, 1, b'\0\0\0\x03\x10') * 200),
    'WINDOW_UPDATE': (b'', lambda n: frame(WINDOW, 0, 0, b'\0\0\0\x01') * 200),
}
HEAD = b'POST / HTTP/1.1\r\nHost: hostile\r\n'
# Many connections, each of which sends a little once in a while.
SLOW = {
    'slow heads (400 connections)': (400, HEAD, b'X-Slow: 1\r\n'),
    'slow bodies (400 connections)': (400, HEAD + b'Content-Length: 100000\r\n\r\n', b'x'),
    'slow HTTP/2 heads (400 connections)': (400, PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 1, 1, block()), b''),
    'idle after one request (1,000 connections)': (1000, b'GET / HTTP/1.1\r\nHost: hostile\r\n\r\n', b''),
}
REPEATED = {
    'heads of 1 MB': HEAD + b'X: ' + b'y' * 1_000_000,
    'requests pipelined and never read': b'GET / HTTP/1.1\r\nHost: hostile\r\n\r\n' * 5_000,
}


class Attack:
    def __init__(self, to, seconds):
        self.to, self.until, self.sent, self.connections, self.ends = to, time.monotonic() + seconds, 0, 0, {}

    def ended(self, how):
        self.ends[how] = self.ends.get(how, 0) + 1

    def connect(self):
        self.connections += 1
        s = socket.create_connection(self.to, timeout=2)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return s

    def flood(self, first, more, read=True):
        """One connection after another. Answers are read and thrown away, so that nothing waits for the attacker."""
        while time.monotonic() < self.until:
            s, got, n = self.connect(), bytearray(), 0
            s.setblocking(False)
            pending = PREFACE + frame(SETTINGS, 0, 0) + first if first is not None else b''
            with selectors.DefaultSelector() as wait:
                wait.register(s, selectors.EVENT_READ | selectors.EVENT_WRITE)
                while time.monotonic() < self.until:
                    try:
                        ready = {mask for _, mask in wait.select(0.2)} or {0}
                        mask = ready.pop()
                        if mask & selectors.EVENT_READ and read:
                            piece = s.recv(1 << 16)
                            if not piece:
                                break
                            got = (got + piece)[-4096:]
                        if mask & selectors.EVENT_WRITE:
                            if not pending:
                                pending, n = more(n), n + 1
                            count = s.send(pending)
                            self.sent, pending = self.sent + count, pending[count:]
                    except BlockingIOError:
                        pass
                    except OSError:
                        break
                else:
                    self.ended('not ended by the proxy')
                    s.close()
                    return
            self.ended(how_ended(s, got))
            s.close()

    def slow(self, count, first, more):
        sockets = []
        for _ in range(count):
            try:
                s = self.connect()
                s.sendall(first)
                s.setblocking(False)
                sockets.append(s)
            except OSError:
                self.ended('refused')
        while time.monotonic() < self.until:
            time.sleep(0.5)
            for s in list(sockets):
                try:
                    if more:
                        self.sent += s.send(more)
                    if not s.recv(1 << 16) or not more:
                        raise ConnectionResetError
                except BlockingIOError:
                    pass
                except OSError:
                    if more:
                        self.ended('closed by the proxy')
                        sockets.remove(s)
        self.ends['still open at the end'] = len(sockets)
        for s in sockets:
            s.close()


def how_ended(s, got):
    """The code of the last GOAWAY, if there is one among the last bytes."""
    try:
        s.setblocking(True)
        s.settimeout(1)
        while piece := s.recv(1 << 16):
            got = (got + piece)[-4096:]
    except OSError:
        pass
    last = list(re.finditer(rb'\0\0[\x08-\x60]\x07\0\0\0\0\0.{4}(.{4})', bytes(got), re.DOTALL))
    if last:
        code = struct.unpack('>I', last[-1][1])[0]
        return f'GOAWAY {CODES.get(code, code)}'
    status = bytes(got).rfind(b'HTTP/1.1 ')
    return f'HTTP {bytes(got)[status + 9:status + 12].decode()}, closed' if status >= 0 else 'closed'


def attack(name, host, port, seconds):
    a = Attack((host, port), seconds)
    if name in FLOODS:
        a.flood(*FLOODS[name])
    elif name in SLOW:
        a.slow(*SLOW[name])
    else:
        a.flood(None, lambda n: REPEATED[name], read='never read' not in name)
    print(json.dumps(dict(sent=a.sent, connections=a.connections, ends=a.ends)))


def neighbour(host, port, seconds, rate):
    """Asks at a fixed rate on eight connections, and again on a new one if one is lost."""
    results, lock = [], threading.Lock()

    def ask(offset):
        s, begin = None, time.monotonic()
        for i in range(int(seconds * rate / 8)):
            due = begin + offset + i * 8 / rate
            if time.monotonic() > begin + seconds + 2:
                # What could not even be asked any more is lost, too.
                results.append((False, 0))
                continue
            time.sleep(max(0, due - time.monotonic()))
            started, ok = time.monotonic(), False
            try:
                if s is None:
                    s = socket.create_connection((host, port), timeout=2)
                s.sendall(b'GET / HTTP/1.1\r\nHost: neighbour\r\n\r\n')
                got = b''
                while b'\r\n\r\n' not in got or len(got.split(b'\r\n\r\n', 1)[1]) < 100:
                    piece = s.recv(1 << 16)
                    if not piece:
                        raise ConnectionResetError
                    got += piece
                ok = got.startswith(b'HTTP/1.1 200')
            except OSError:
                s = None
            with lock:
                results.append((ok, time.monotonic() - started))

    threads = [threading.Thread(target=ask, args=(o / rate,)) for o in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    took = sorted(t for ok, t in results if ok) or [0]
    late = sum(1 for ok, t in results if not ok or t > 1)
    print(json.dumps(dict(asked=len(results), lost=late, p50_ms=took[len(took) // 2] * 1e3, p99_ms=took[len(took) * 99 // 100] * 1e3)))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument('--bin', type=pathlib.Path, default=bench.REPO/'target'/'release')
    p.add_argument('--seconds', type=int, default=8, help='of each flood')
    p.add_argument('--rate', type=int, default=100, help="the neighbour's requests in a second")
    p.add_argument('--only', help='floods whose name holds this')
    p.add_argument('--markdown', type=pathlib.Path, help='write the table there')
    p.add_argument('--role', nargs=4, help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.role:
        role, name, host, port = a.role
        return attack(name, host, int(port), a.seconds) if role == 'attack' else neighbour(host, int(port), a.seconds, a.rate)
    if os.geteuid():
        raise SystemExit('needs root, for network namespaces')
    for program in ('weft-proxy', 'weft-sample', 'bench-controller'):
        if not os.access(a.bin/program, os.X_OK):
            raise SystemExit(f'{a.bin/program} is not there: run `cargo build --bins`')
    a.body, a.kind, a.cores, a.hop, a.bulk = 100, 'http', 1, False, False
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = pathlib.Path(tempfile.mkdtemp(prefix='weft-hostile-'))
    rows, pair = [], None
    try:
        for number, name in enumerate([None, *FLOODS, *SLOW, *REPEATED]):
            if name and a.only and a.only not in name:
                continue
            # A pair of its own for each: growth is not hidden in what an earlier flood left.
            pair = bench.Pair(a, number, f'flood{number}', str((a.bin/'weft-proxy').resolve()), folder)
            pair.up()
            rows.append((name or 'none', measure(a, pair, name)))
            pair.down()
            print(rows[-1], flush=True)
    finally:
        if pair:
            pair.down()
        shutil.rmtree(folder, ignore_errors=True)
    table = markdown(rows)
    print(table)
    if a.markdown:
        a.markdown.write_text(table)


def inside(a, pair, role, name):
    command = pair.inside('client', sys.executable, __file__, '--seconds', a.seconds, '--rate', a.rate, '--role', role, name, bench.SERVICE_IP, bench.PORT)
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def measure(a, pair, name):
    # Warm: what the first requests allocate is nobody's growth.
    warm = argparse.Namespace(seconds=1, rate=a.rate)
    inside(warm, pair, 'neighbour', 'warm').communicate()
    before, peak = pair.memory(), pair.memory()
    asking = inside(a, pair, 'neighbour', 'neighbour')
    attacking = inside(a, pair, 'attack', name) if name else None
    while asking.poll() is None:
        peak = {side: max(mb, pair.memory()[side]) for side, mb in peak.items()}
        time.sleep(0.1)
    lost = json.loads(asking.communicate()[0])
    done = json.loads(attacking.communicate()[0]) if attacking else dict(sent=0, connections=0, ends={})
    return dict(growth_mb={side: round(peak[side] - before[side], 1) for side in peak}, **lost, **done)


def markdown(rows):
    out = ['| flood | growth MB, client\'s / server\'s proxy | neighbour lost | p50 / p99 ms | sent MB | connections | how they ended |', '|---|---|---|---|---|---|---|']
    for name, r in rows:
        ends = ', '.join(f'{count} × {how}' for how, count in r['ends'].items()) or '–'
        out.append(f'| {name} | {r["growth_mb"]["client"]} / {r["growth_mb"]["server"]} | {r["lost"]} of {r["asked"]} | {r["p50_ms"]:.1f} / {r["p99_ms"]:.1f} '
                   f'| {r["sent"] / 1e6:.1f} | {r["connections"]} | {ends} |')
    return '\n'.join(out) + '\n'


if __name__ == '__main__':
    main()
