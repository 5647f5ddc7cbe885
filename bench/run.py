#!/usr/bin/env python3
"""What a pair of proxies costs: HTTP/1.1 keep-alive through both, beside a direct connection, in one run.

For each subject (a direct connection, weft, any other proxy given by path) there are two network namespaces and a
link. With --hop there is one proxy only: weft's inbound one, and haproxy and nginx where they are installed. The client calls an address that nothing has; redirects bring the call to the client's proxy, which a
controller sends to the server's proxy. All subjects stay up, and rounds take turns, so that what else the machine does
meets all of them alike.

Needs root, iproute2, util-linux and Python 3; the programs are built by `cargo build --release --bins`.

    python3 bench/run.py
    python3 bench/run.py --proxy other=/path/to/other-proxy --rounds 5 --json figures.json
    python3 bench/run.py --kind opaque
    python3 bench/run.py --streams 16 --connections 4
    python3 bench/run.py --kind opaque --bulk --connections 1
    python3 bench/run.py --hop
    python3 bench/run.py --memory
"""
import argparse, json, os, pathlib, shutil, signal, statistics, subprocess, sys, tempfile, time

REPO = pathlib.Path(__file__).resolve().parent.parent
CLIENT_IP, SERVER_IP, SERVICE_IP, PORT = '192.0.2.1', '192.0.2.2', '192.0.2.100', 8080
UID = 2102
TICK = os.sysconf('SC_CLK_TCK')


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    target = os.environ.get('CARGO_TARGET_DIR', REPO/'target')
    p.add_argument('--bin', type=pathlib.Path, default=pathlib.Path(target)/'release', help='folder of the built programs')
    p.add_argument('--proxy', action='append', default=[], metavar='NAME=PATH', help='a proxy to measure; may be repeated (default: weft)')
    p.add_argument('--connections', default='1,32', help='comma-separated numbers of connections')
    p.add_argument('--seconds', type=int, default=5, help='measured seconds in each round')
    p.add_argument('--rounds', type=int, default=3)
    p.add_argument('--body', type=int, default=100, help='bytes in a response')
    p.add_argument('--kind', choices=['http', 'opaque'], default='http')
    p.add_argument('--streams', type=int, help='speak HTTP/2, with so many requests at a time on each connection')
    p.add_argument('--bulk', action='store_true', help='bytes in one direction instead of requests')
    p.add_argument('--hop', action='store_true', help='one proxy beside the server instead of a pair')
    p.add_argument('--memory', action='store_true', help='what connections cost one proxy beside the server in memory')
    p.add_argument('--cores', type=int, default=1, help='worker threads of each proxy')
    p.add_argument('--json', type=pathlib.Path, help='write all figures there')
    a = p.parse_args()
    a.connections = [int(c) for c in a.connections.split(',')]
    a.proxies = dict(entry.split('=', 1) for entry in a.proxy) or {'weft': str(a.bin/'weft-proxy')}
    a.hop |= a.memory
    return a


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f'{" ".join(map(str, command))}: {done.stderr.strip() or done.stdout.strip()}')
    return done.stdout


class Pair:
    """Two namespaces with a link, a server, and (unless direct) a proxy and a controller on each side."""

    def __init__(self, args, number, name, proxy, folder):
        self.args, self.name, self.proxy = args, name, proxy
        self.sides = ('server',) if args.hop else ('server', 'client')
        self.to = f'{SERVER_IP if proxy is None or args.hop else SERVICE_IP}:{PORT}'
        self.folder = folder/name
        self.folder.mkdir()
        self.spaces = {side: f'wb{os.getpid()}-{number}{side[0]}' for side in ('client', 'server')}
        self.made, self.processes, self.proxies = [], [], {}

    def inside(self, side, *command):
        return ['ip', 'netns', 'exec', self.spaces[side], *map(str, command)]

    def spawn(self, side, log, command, env=None):
        with open(self.folder/f'{log}-{side}.log', 'w') as out:
            p = subprocess.Popen(self.inside(side, *command), stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                 env=env, start_new_session=True)
        self.processes.append(p)
        return p

    def up(self):
        a, bins = self.args, self.args.bin
        for space in self.spaces.values():
            run('ip', 'netns', 'add', space)
            self.made.append(space)
        c, s = self.spaces['client'], self.spaces['server']
        run('ip', '-n', c, 'link', 'add', 'eth0', 'type', 'veth', 'peer', 'name', 'eth0', 'netns', s)
        for space, ip in ((c, CLIENT_IP), (s, SERVER_IP)):
            run('ip', '-n', space, 'addr', 'add', f'{ip}/24', 'dev', 'eth0')
            run('ip', '-n', space, 'link', 'set', 'lo', 'up')
            run('ip', '-n', space, 'link', 'set', 'eth0', 'up')
        self.spawn('server', 'app', [bins/'weft-sample', 'bench-server', '--listen', f'{SERVER_IP}:{PORT}', '--body', a.body,
                                     *(['--sink'] if a.bulk else [])])
        if self.proxy is None:
            return
        if self.name in FOREIGN:
            config = self.folder/f'{self.name}.conf'
            config.write_text(FOREIGN[self.name].format(folder=self.folder, port=HOP_PORT, server=f'{SERVER_IP}:{PORT}'))
            for path in (self.folder.parent, self.folder):
                path.chmod(0o777)
            setpriv = ['setpriv', '--reuid', UID, '--regid', UID, '--clear-groups']
            self.proxies['server'] = self.spawn('server', 'proxy', [*setpriv, self.proxy, *FOREIGN_ARGUMENTS[self.name], config])
            self.redirect('server')
            time.sleep(0.5)
            return
        pki = self.folder/'pki'
        run(bins/'bench-controller', 'prepare', pki, 'client', 'server')
        for side in self.spaces:
            for path in [pki/side, *(pki/side).iterdir()]:
                os.chown(path, UID, UID)
        for path in (self.folder.parent, self.folder, pki):
            path.chmod(0o711)  # the proxies' user passes through
        ips = dict(server=SERVER_IP, client=CLIENT_IP)
        for side in self.sides:
            self.spawn(side, 'controller', [bins/'bench-controller', 'serve', pki, '127.0.0.1:8086', f'{SERVICE_IP}:{PORT}',
                                            f'{SERVER_IP}:{PORT}', 'server', 'hop' if a.hop else a.kind])
        for side in self.sides:
            ip = ips[side]
            setpriv = ['setpriv', '--reuid', UID, '--regid', UID, '--clear-groups']
            self.proxies[side] = self.spawn(side, 'proxy', [*setpriv, self.proxy], env=self.environment(side, ip, pki))
            self.redirect(side)
        for side in self.sides:
            self.wait_until_ready(side)

    def environment(self, side, ip, pki):
        cores, identity = str(self.args.cores), 'bench.serviceaccount.identity.linkerd.cluster.local'
        env = dict(
            LOG='warn', CORES=cores, CORES_MAX=cores,
            OUTBOUND_LISTEN_ADDRS='127.0.0.1:4140', INBOUND_LISTEN_ADDR='0.0.0.0:4143', ADMIN_LISTEN_ADDR='127.0.0.1:4191',
            CONTROL_LISTEN_ADDR='127.0.0.1:4190', DESTINATION_SVC_ADDR='127.0.0.1:8086', POLICY_SVC_ADDR='127.0.0.1:8086',
            IDENTITY_SVC_ADDR='127.0.0.1:8086', DESTINATION_CONTEXT=json.dumps(dict(ns='bench', pod=side)),
            DESTINATION_PROFILE_NETWORKS='192.0.2.0/24', DESTINATION_PROFILE_SUFFIXES='svc.cluster.local.',
            POLICY_WORKLOAD=json.dumps(dict(ns='bench', pod=side)), POLICY_CLUSTER_NETWORKS='192.0.2.0/24',
            INBOUND_DEFAULT_POLICY='all-unauthenticated', INBOUND_IPS=ip, INBOUND_PORTS=str(PORT), IDENTITY_DIR=str(pki/side),
            IDENTITY_TOKEN_FILE=str(pki/side/'token'), IDENTITY_TRUST_ANCHORS=(pki/'ca.pem').read_text(),
            IDENTITY_LOCAL_NAME=f'{side}.{identity}')
        return {f'LINKERD2_PROXY_{key}': value for key, value in env.items()}

    def redirect(self, side):
        """The same rules for every proxy: set by `weft proxy-init`, or by iptables where weft is not built."""
        weft = self.args.bin/'weft'
        if weft.exists():
            run(*self.inside(side, weft, 'proxy-init', '--proxy-uid', UID, '--inbound-ports-to-ignore', '4190,4191'))
            return
        if not shutil.which('iptables'):
            raise SystemExit(f'{weft} is not built and there is no iptables')
        for rule in ('PREROUTING -p tcp -m multiport --dports 4190,4191 -j RETURN', 'PREROUTING -p tcp -j REDIRECT --to-ports 4143',
                     f'OUTPUT -m owner --uid-owner {UID} -j RETURN', 'OUTPUT -o lo -j RETURN', 'OUTPUT -p tcp -j REDIRECT --to-ports 4140'):
            run(*self.inside(side, 'iptables', '-t', 'nat', '-A', *rule.split()))

    def wait_until_ready(self, side):
        # urllib runs here, not in there; so ask from a small program in the namespace.
        ask = 'import urllib.request as u; print(u.urlopen("http://127.0.0.1:4191/ready", timeout=1).status)'
        for _ in range(100):
            if self.proxies[side].poll() is not None:
                break
            if subprocess.run(self.inside(side, sys.executable, '-I', '-c', ask), capture_output=True).returncode == 0:
                return
            time.sleep(0.1)
        log = (self.folder/f'proxy-{side}.log').read_text(errors='replace')[-2000:]
        raise SystemExit(f'{self.name}: the {side}\'s proxy did not become ready:\n{log}')

    def cpu(self):
        """User and system seconds of both proxies so far."""
        total = 0
        for p in self.proxies.values():
            fields = pathlib.Path(f'/proc/{p.pid}/stat').read_text().rsplit(')', 1)[1].split()
            total += int(fields[11]) + int(fields[12])
        return total / TICK

    def memory(self):
        """Resident megabytes of each proxy."""
        found = {}
        for side, p in self.proxies.items():
            line = next(l for l in pathlib.Path(f'/proc/{p.pid}/status').read_text().splitlines() if l.startswith('VmRSS:'))
            found[side] = round(int(line.split()[1]) / 1024, 1)
        return found

    def measure(self, connections):
        a, before = self.args, self.cpu()
        more = ['--streams', a.streams] if a.streams else ['--bulk'] if a.bulk else []
        out = run(*self.inside('client', a.bin/'weft-sample', 'bench-client', '--to', self.to, '--connections', connections,
                               '--duration', f'{a.seconds}s', '--warmup', '1s', *more))
        report = json.loads(out)
        # Divided by the requests of the whole run, since the CPU time is that of the whole run.
        report['cpu_us'] = (self.cpu() - before) * 1e6 / max(1, report['requests_in_all']) if self.proxy else 0
        if report['errors']:
            print(f'{self.name}: {report["errors"]} errors, the first: {report.get("first_error")}', file=sys.stderr)
        return report

    def hold(self, connections):
        """Resident megabytes with so many connections open that had one request each."""
        client = self.spawn('client', 'hold', [self.args.bin/'weft-sample', 'bench-client', '--to', self.to, '--connections',
                                               connections, '--duration', '600s', '--hold'])
        log = self.folder/'hold-client.log'
        while 'held' not in log.read_text():
            if client.poll() is not None:
                raise SystemExit(f'{self.name}: {log.read_text()}')
            time.sleep(0.1)
        time.sleep(4)  # pools towards the application shrink by themselves
        found = self.memory()
        client.kill()
        client.wait()
        time.sleep(1)
        return found

    def busy(self, connections):
        """The most resident megabytes while so many connections have a request under way all the time."""
        client = self.spawn('client', 'busy', [self.args.bin/'weft-sample', 'bench-client', '--to', self.to, '--connections',
                                               connections, '--duration', f'{self.args.seconds}s'])
        most = {}
        while client.poll() is None:
            for side, now in self.memory().items():
                most[side] = max(most.get(side, 0), now)
            time.sleep(0.1)
        return most

    def down(self):
        for p in self.processes:
            if p.poll() is None:
                p.send_signal(signal.SIGKILL)
        for p in self.processes:
            p.wait()
        for space in self.made:
            subprocess.run(['ip', 'netns', 'del', space], capture_output=True)


HOP_PORT = 4143  # where the same redirect leads as for weft
FOREIGN_ARGUMENTS = dict(haproxy=['-db', '-f'], nginx=['-c'])
FOREIGN = dict(
    haproxy="""global
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  http-reuse always
frontend f
  bind :{port}
  default_backend b
backend b
  server s {server}
""",
    nginx="""worker_processes 1;
master_process off;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
events {{ worker_connections 20000; }}
http {{
  access_log off;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder};
  keepalive_requests 1000000000;
  upstream s {{ server {server}; keepalive 256; keepalive_requests 1000000000; }}
  server {{ listen {port}; location / {{ proxy_pass http://s; proxy_http_version 1.1; proxy_set_header Connection ""; }} }}
}}
""")


def main():
    args = arguments()
    if os.geteuid():
        raise SystemExit('needs root, for network namespaces')
    needed = [args.bin/'weft-sample', args.bin/'bench-controller', *args.proxies.values()]
    for path in needed:
        if not os.access(path, os.X_OK):
            raise SystemExit(f'{path} is not there: run `cargo build --release --bins`')
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that `finally` runs
    pairs, folder = [], pathlib.Path(tempfile.mkdtemp(prefix='weft-bench-'))
    try:
        subjects = [('direct', None), *args.proxies.items()]
        if args.memory:
            del subjects[0]
        elif args.hop:
            subjects += [(name, shutil.which(name)) for name in FOREIGN if shutil.which(name)]
        for number, (name, proxy) in enumerate(subjects):
            pair = Pair(args, number, name, proxy and str(pathlib.Path(proxy).resolve()), folder)
            pairs.append(pair)
            pair.up()
        idle = {pair.name: pair.memory() for pair in pairs if pair.proxy}
        if args.memory:
            print('| resident MB of one proxy | idle | 1,000 active connections | 10,000 idle connections |\n|---|---|---|---|')
            for pair in pairs:
                busy, held = pair.busy(1000), pair.hold(10000)
                print(f'| {pair.name} | {idle[pair.name]["server"]} | {busy["server"]} | {held["server"]} |')
            return
        reports = {}
        for _ in range(args.rounds):
            for connections in args.connections:
                for pair in pairs:
                    reports.setdefault((pair.name, connections), []).append(pair.measure(connections))
        loaded = {pair.name: pair.memory() for pair in pairs if pair.proxy}
    finally:
        for pair in pairs:
            pair.down()
        shutil.rmtree(folder, ignore_errors=True)

    rows = []
    for (name, connections), rounds in sorted(reports.items(), key=lambda r: r[0][1]):
        middle = lambda key: statistics.median(r[key] for r in rounds)
        rows.append(dict(subject=name, connections=connections, requests_per_second=round(middle('requests_per_second')),
                         p50_us=middle('p50_us'), p99_us=middle('p99_us'), cpu_us=round(middle('cpu_us'), 1),
                         cpu_us_range=[round(f(r['cpu_us'] for r in rounds), 1) for f in (min, max)],
                         errors=sum(r['errors'] for r in rounds)))
    if args.bulk:
        what, each = f'{args.kind}, bytes in one direction, a "request" is 64 KiB', '64 KiB'
    else:
        http = f'HTTP/2, {args.streams} streams a connection' if args.streams else 'HTTP/1.1 keep-alive'
        what, each = f'{http}, {args.kind}, {args.body} bytes', 'request'
    proxies = 'the proxy' if args.hop else 'both proxies'
    print(f'{what}, {args.cores} worker(s) a proxy, medians of {args.rounds} rounds of {args.seconds} s')
    print(f'| subject | connections | {each}s/s | p50 ms | p99 ms | CPU µs/{each} ({proxies}) | errors |\n|---|---|---|---|---|---|---|')
    for r in rows:
        cpu = f'{r["cpu_us"]} ({r["cpu_us_range"][0]}–{r["cpu_us_range"][1]})' if r['subject'] != 'direct' else '–'
        print(f'| {r["subject"]} | {r["connections"]} | {r["requests_per_second"]:,} | {r["p50_us"]/1e3:.2f} | {r["p99_us"]/1e3:.2f} | {cpu} | {r["errors"]} |')
    for name in idle:
        print(f'{name}: resident MB idle {idle[name]}, after the load {loaded[name]}')
    if args.json:
        kernel, cpus = os.uname().release, os.cpu_count()
        args.json.write_text(json.dumps(dict(kind=args.kind, body=args.body, kernel=kernel, cpus=cpus, rows=rows, resident_mb_idle=idle,
                                             resident_mb_loaded=loaded, rounds=[dict(subject=k[0], rounds=v) for k, v in reports.items()]), indent=1))
    sys.exit(1 if any(r['errors'] for r in rows) else 0)


if __name__ == '__main__':
    main()
