#!/usr/bin/env python3
"""Many idle pods, pods that come and go, controllers and node agents that are killed, with traffic on: what is left behind, and who noticed.

One `weft up` with --pods meshed, idle pods, a service of three replicas and one client that sends --requests to it. Meanwhile
pods are created and deleted --cycles times, the service's replicas among them, and the mesh's controller and its node agent
are killed (-9) at random. At the start, in the middle and at the end everything is counted that could leak. Ends with status 1 if a request
failed, if anything grew, or if something was left when the mesh had ended.

Needs root, Linux, Python 3, iproute2, nftables and util-linux; `cargo build --release -p weft` builds the program.

    sudo python3 bench/soak.py
    sudo python3 bench/soak.py --pods 20 --cycles 50 --requests 5000     a small one
"""
import argparse, base64, collections, http.client, json, os, pathlib, random, re, ssl, subprocess, sys, tempfile, threading, time

REPO = pathlib.Path(__file__).resolve().parent.parent
NAMESPACE, CHURN = 'soak', 'churn'
CONTROLLER, AGENT = '__controller', '__agent'
PATIENCE = 120

# What is counted, and by how much it may grow between the middle and the end.
BOUNDS = dict(processes=0, namespaces=0, mounts=0, links=0, nft_lines=0, files=5, supervisor_fds=10, controller_fds=10, agent_fds=10,
              supervisor_threads=4, supervisor_mb=10, controller_mb=10, agent_mb=10, web_proxy_mb=6, client_proxy_mb=4)


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    target = os.environ.get('CARGO_TARGET_DIR', REPO/'target')
    p.add_argument('--weft', type=pathlib.Path, default=pathlib.Path(target)/'release/weft', help='the program')
    p.add_argument('--pods', type=int, default=200, help='idle pods')
    p.add_argument('--cycles', type=int, default=1000, help='pods that are created and deleted')
    p.add_argument('--at-once', type=int, default=4, help='how many of these at a time')
    p.add_argument('--requests', type=int, default=100_000)
    p.add_argument('--rate', type=int, default=250, help='requests per second')
    p.add_argument('--kill-every', type=float, default=20, help='mean seconds between two kills of each; 0: none')
    p.add_argument('--replace-every', type=int, default=25, help='one replica of the service is deleted every so many cycles')
    p.add_argument('--seed', type=int, default=1)
    p.add_argument('--name', default='soak', help='name of the mesh')
    p.add_argument('--json', type=pathlib.Path, help='write all figures there')
    return p.parse_args()


def container(command, **more):
    return [dict(name='app', image='none:1', command=command, **more)]


def server(port):
    return container(['weft', 'sample', 'mail', '--listen', f'0.0.0.0:{port}'], ports=[dict(containerPort=port)],
                     readinessProbe=dict(tcpSocket=dict(port=port), periodSeconds=2))


def deployment(name, replicas, containers):
    labels = dict(app=name)
    return dict(apiVersion='apps/v1', kind='Deployment', metadata=dict(name=name, namespace=NAMESPACE),
                spec=dict(replicas=replicas, selector=dict(matchLabels=labels),
                          template=dict(metadata=dict(labels=labels), spec=dict(containers=containers))))


def manifests(pods):
    """The namespaces, the service under load and its client, and idle services of ten pods each."""
    def service(name, port):
        return dict(apiVersion='v1', kind='Service', metadata=dict(name=name, namespace=NAMESPACE),
                    spec=dict(selector=dict(app=name), ports=[dict(port=port)]))
    objects = [dict(apiVersion='v1', kind='Namespace', metadata=dict(name=n, annotations={'linkerd.io/inject': 'enabled'}))
               for n in (NAMESPACE, CHURN)]
    objects += [service('web', 8025), deployment('web', 3, server(8025)),
                dict(apiVersion='v1', kind='Pod', metadata=dict(name='client', namespace=NAMESPACE),
                     spec=dict(containers=container(['sleep', 'infinity'])))]
    for number, first in enumerate(range(0, pods, 10)):
        name = f'idle{number}'
        objects += [service(name, 8025), deployment(name, min(10, pods - first), server(8025))]
    return '\n---\n'.join(json.dumps(o) for o in objects)


class Api:
    """The mesh's Kubernetes API, over one connection for each thread."""

    def __init__(self, kubeconfig):
        config = json.loads(kubeconfig.read_text())
        cluster = config['clusters'][0]['cluster']
        self.host = cluster['server'].removeprefix('https://')
        self.token = config['users'][0]['user']['token']
        self.tls = ssl.create_default_context(cadata=base64.b64decode(cluster['certificate-authority-data']).decode())
        self.local = threading.local()

    def call(self, method, path, body=None):
        """Status and object; a connection that was closed is opened again."""
        for attempt in (0, 1):
            connection = getattr(self.local, 'connection', None)
            if connection is None:
                connection = self.local.connection = http.client.HTTPSConnection(self.host, context=self.tls, timeout=30)
            try:
                connection.request(method, path, body and json.dumps(body),
                                   {'Authorization': f'Bearer {self.token}', 'Content-Type': 'application/json'})
                answer = connection.getresponse()
                return answer.status, json.loads(answer.read() or b'null')
            except (http.client.HTTPException, OSError):
                connection.close()
                self.local.connection = None
                if attempt:
                    raise

    def pods(self, namespace, selector=''):
        status, found = self.call('GET', f'/api/v1/namespaces/{namespace}/pods?labelSelector={selector}')
        assert status == 200, found
        return found['items']


def ready(pod):
    return any(c['type'] == 'Ready' and c['status'] == 'True' for c in pod.get('status', {}).get('conditions', []))


def until(what, fine, patience=PATIENCE):
    end = time.monotonic() + patience
    while not (answer := fine()):
        if time.monotonic() > end:
            raise SystemExit(f'{what}: not within {patience} s')
        time.sleep(0.2)
    return answer


class Churn:
    """Creates and deletes pods, several at a time; some of them are replicas of the service under load."""

    def __init__(self, args, api):
        self.args, self.api = args, api
        self.lock, self.left, self.done, self.errors = threading.Lock(), 0, 0, []
        self.ready, self.starts = set(), []
        self.present = set()

    def run(self, cycles):
        self.left, before = cycles, self.done
        watching = threading.Event()
        watcher = threading.Thread(target=self.watch, args=(watching,))
        workers = [threading.Thread(target=self.work) for _ in range(self.args.at_once)]
        for thread in (watcher, *workers):
            thread.start()
        for thread in workers:
            thread.join()
        watching.set()
        watcher.join()
        if self.errors:
            raise SystemExit(f'after {self.done - before} cycles: {self.errors[0]}')

    def watch(self, stop):
        while not stop.wait(0.25):
            try:
                pods = self.api.pods(CHURN)
            except OSError as error:
                self.errors.append(f'listing pods: {error}')
                return
            self.ready = {p['metadata']['name'] for p in pods if ready(p)}
            self.present = {p['metadata']['name'] for p in pods}

    def work(self):
        while True:
            with self.lock:
                if self.left == 0 or self.errors:
                    return
                self.left -= 1
                number = self.done + self.left
                replace = self.left % self.args.replace_every == 0
            try:
                self.cycle(f'churn-{number}-{time.monotonic_ns() % 1_000_000}')
                if replace:
                    self.replace()
            except (SystemExit, OSError, AssertionError) as error:
                self.errors.append(str(error))
                return
            with self.lock:
                self.done += 1

    def cycle(self, name):
        pod = dict(apiVersion='v1', kind='Pod', metadata=dict(name=name),
                   spec=dict(terminationGracePeriodSeconds=5, containers=server(8025)))
        began = time.monotonic()
        # Refused while the controller is away, which admits pods: tried again, as a Deployment's controller does.
        until(f'create {name}', lambda: self.api.call('POST', f'/api/v1/namespaces/{CHURN}/pods', pod)[0] == 201)
        until(f'{name} is ready', lambda: name in self.ready)
        self.starts.append(time.monotonic() - began)
        status, answer = self.api.call('DELETE', f'/api/v1/namespaces/{CHURN}/pods/{name}')
        assert status == 200, answer
        until(f'{name} is gone', lambda: name not in self.present)

    def replace(self):
        """Deletes the oldest replica, once all three are there."""
        replicas = until('three replicas', lambda: self.three())
        oldest = min(replicas, key=lambda pod: pod['metadata']['creationTimestamp'])
        self.api.call('DELETE', f'/api/v1/namespaces/{NAMESPACE}/pods/{oldest["metadata"]["name"]}')

    def three(self):
        replicas = [p for p in self.api.pods(NAMESPACE, 'app%3Dweb') if ready(p) and 'deletionTimestamp' not in p['metadata']]
        return replicas if len(replicas) >= 3 else None


class Killer(threading.Thread):
    """Kills the controller or the node agent now and then, each time once it was ready."""

    def __init__(self, args, api, role):
        super().__init__(daemon=True)
        self.args, self.api, self.role, self.random = args, api, role, random.Random(f'{args.seed} {role}')
        self.stopping, self.kills, self.back = threading.Event(), 0, []
        self.truce = threading.Lock()

    def run(self):
        while not self.stopping.wait(self.random.uniform(0.25, 1.75) * self.args.kill_every):
            with self.truce:
                self.kill()

    def kill(self):
        name = self.args.name
        pid = kept(name, self.role)
        if pid is None:
            return
        os.kill(pid, 9)
        self.kills += 1
        began = time.monotonic()
        until(f'another {self.role}', lambda: kept(name, self.role) not in (None, pid))
        if self.role == CONTROLLER:
            until('the controller is ready', lambda: answers(self.api))
        self.back.append(time.monotonic() - began)

    def stop(self):
        self.stopping.set()
        self.join()


def answers(api):
    try:
        # Not JSON: the controller's own words.
        return api.call('GET', '/api/v1/namespaces/linkerd/services/linkerd-dst:9990/proxy/ready')[0] == 200
    except ValueError:
        return True
    except OSError:
        return False


def command(pid):
    try:
        return pathlib.Path(f'/proc/{pid}/cmdline').read_bytes().split(b'\0')[:-1]
    except OSError:
        return []


def numbers():
    return [int(entry) for entry in os.listdir('/proc') if entry.isdigit()]


def kept(name, role):
    return next((pid for pid in numbers() if command(pid)[1:] == [role.encode(), name.encode()]), None)


def parent(pid):
    try:
        return int(pathlib.Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1].split()[1])
    except OSError:
        return 0


class Figures:
    """Counts everything that a mesh has of this machine."""

    def __init__(self, args, api):
        self.args, self.api = args, api
        pid = until('the controller', lambda: kept(args.name, CONTROLLER))
        self.supervisor = parent(pid)

    def family(self):
        """All processes of the mesh."""
        parents = {pid: parent(pid) for pid in numbers()}
        children = collections.defaultdict(list)
        for pid, above in parents.items():
            children[above].append(pid)
        found, ahead = [], [self.supervisor]
        while ahead:
            found.append(pid := ahead.pop())
            ahead += children[pid]
        return found

    def take(self):
        family, inside = self.family(), ['nsenter', '-t', str(self.supervisor), '-n']
        lines = lambda *words: len(subprocess.run([*inside, *words], capture_output=True, text=True, check=True).stdout.splitlines())
        spaces = set()
        for pid in family:
            for kind in ('net', 'mnt', 'pid', 'uts', 'ipc'):
                spaces.add(link(f'/proc/{pid}/ns/{kind}'))
        descriptors = [link(f'/proc/{self.supervisor}/fd/{fd}') for fd in os.listdir(f'/proc/{self.supervisor}/fd')]
        spaces.update(d for d in descriptors if ':[' in d and not d.startswith(('socket', 'pipe', 'anon')))
        proxies = self.proxies(family)
        now, agent = (kept(self.args.name, role) for role in (CONTROLLER, AGENT))
        root = pathlib.Path('/proc', str(self.supervisor), 'root', 'run/weft', self.args.name)
        files = sum(len(files) for _, _, files in os.walk(root))
        return dict(
            processes=len(family), namespaces=len(spaces - {''}),
            mounts=len(pathlib.Path(f'/proc/{self.supervisor}/mountinfo').read_text().splitlines()),
            links=lines('ip', '-o', 'link'), nft_lines=lines('nft', 'list', 'chains') + lines('nft', 'list', 'maps'), files=files,
            supervisor_fds=len(descriptors), controller_fds=len(os.listdir(f'/proc/{now}/fd')),
            agent_fds=len(os.listdir(f'/proc/{agent}/fd')),
            supervisor_threads=len(os.listdir(f'/proc/{self.supervisor}/task')),
            supervisor_mb=private(self.supervisor), controller_mb=private(now), agent_mb=private(agent),
            web_proxy_mb=max(proxies['web']), client_proxy_mb=max(proxies['client']),
            idle_proxy_mb=round(sum(proxies['idle']) / max(1, len(proxies['idle'])), 1))

    def proxies(self, family):
        """Private megabytes of the proxies, by whose they are."""
        found = collections.defaultdict(lambda: [0.0])
        for pid in family:
            words = command(pid)
            if len(words) != 2 or words[1] != b'proxy':
                continue
            try:
                environment = pathlib.Path(f'/proc/{pid}/environ').read_bytes()
                host = re.search(rb'(?:^|\0)HOSTNAME=([a-z]+)', environment)[1].decode()
                found[host].append(private(pid))
            except (OSError, TypeError):
                continue  # it has just ended
        for pods in found.values():
            del pods[0]
        return found

    def cpu(self):
        """CPU seconds of all processes of the mesh that are there now."""
        ticks = 0
        for pid in self.family():
            try:
                fields = pathlib.Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1].split()
                ticks += int(fields[11]) + int(fields[12])
            except OSError:
                pass
        return ticks / os.sysconf('SC_CLK_TCK')


def link(path):
    try:
        return os.readlink(path)
    except OSError:
        return ''


def private(pid):
    """Megabytes that only this process has."""
    text = pathlib.Path(f'/proc/{pid}/smaps_rollup').read_text()
    return round(sum(int(n) for n in re.findall(r'Private_(?:Clean|Dirty): +(\d+)', text)) / 1024, 1)


def left_behind(name, supervisor):
    """What is still there of a mesh that has ended."""
    found = [f'process {pid}: {b" ".join(command(pid)).decode()}' for pid in (supervisor, kept(name, CONTROLLER), kept(name, AGENT)) if pid and command(pid)]
    state = pathlib.Path('/run/weft')
    return found + [str(path) for path in (state.iterdir() if state.is_dir() else ()) if path.name.split('.')[0] == name]


def main():
    args = arguments()
    if os.geteuid():
        raise SystemExit('needs root, for network namespaces')
    if not os.access(args.weft, os.X_OK):
        raise SystemExit(f'{args.weft} is not there: run `cargo build --release -p weft`')
    weft = lambda *words: [str(args.weft), *map(str, words)]
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder)/'soak.yaml'
        file.write_text(manifests(args.pods))
        began = time.monotonic()
        try:
            subprocess.run(weft('up', '--detach', '--name', args.name, '--timeout', 900, file), check=True, stderr=subprocess.PIPE, text=True)
            result = soak(args, weft, round(time.monotonic() - began, 1))
        finally:
            began = time.monotonic()
            subprocess.run(weft('down', '--name', args.name), capture_output=True)
    result['down_s'] = round(time.monotonic() - began, 1)
    result['left'] = left_behind(args.name, result.pop('supervisor'))
    report(result)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))
    sys.exit(1 if result['problems'] or result['left'] else 0)


def soak(args, weft, up):
    """Everything between the start and the end of the mesh."""
    api = Api(pathlib.Path(f'/run/weft/{args.name}/kubeconfig'))
    figures, churn = Figures(args, api), Churn(args, api)
    killers = {role: Killer(args, api, role) for role in (CONTROLLER, AGENT)}
    say(f'{args.pods} idle pods and the service are ready after {up} s')
    time.sleep(15)  # what starting left over: pools, probes, certificates
    cpu, at = figures.cpu(), time.monotonic()
    time.sleep(15)
    idle = round((figures.cpu() - cpu) / (time.monotonic() - at), 2)
    taken = [figures.take()]
    say(f'idle: {idle} cores')

    load = subprocess.Popen(weft('exec', '--name', args.name, '-n', NAMESPACE, 'client', '--', 'weft', 'sample', 'load',
                                 '--target', 'http://web:8025/outbox', '--requests', args.requests, '--rate', args.rate,
                                 '--connections', 16, '--report', '60s', '--strict'),
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if args.kill_every:
        for killer in killers.values():
            killer.start()
    for _ in range(2):
        churn.run(args.cycles // 2)
        say(f'{churn.done} cycles, kills: ' + ', '.join(f'{role} {killer.kills}' for role, killer in killers.items()))
        if len(taken) == 1:
            with killers[CONTROLLER].truce, killers[AGENT].truce:
                taken.append(settled(figures, churn))
    if args.kill_every:
        for killer in killers.values():
            killer.stop()
    said, _ = load.communicate()
    time.sleep(20)
    taken.append(settled(figures, churn))

    middle, end = taken[1:]
    problems = [f'{what} grew from {middle[what]} to {end[what]}' for what, most in BOUNDS.items() if end[what] - middle[what] > most]
    total = [line for line in said.splitlines() if ' ok, ' in line][-1:]
    if load.returncode or not total or f'{args.requests} ok, 0 failed' not in total[0]:
        problems.append('the load: ' + said[-3000:])
    return dict(supervisor=figures.supervisor, pods=args.pods, up_s=up, idle_cores=idle, cycles=churn.done, kills={role: killer.kills for role, killer in killers.items()}, load=total and total[0],
                start_s=spread(churn.starts), back_s={role: spread(killer.back) for role, killer in killers.items()}, figures=taken, problems=problems)


def settled(figures, churn):
    """The figures once no pod is coming or going and the controller, should it have been killed just now, is back."""
    until('pods to end', lambda: not churn.api.pods(CHURN) and churn.three() and answers(churn.api) and kept(churn.args.name, AGENT))
    until('replicas to end', lambda: len(churn.api.pods(NAMESPACE, 'app%3Dweb')) == 3)
    # They are kept for an hour, as on any API server: what pods that are gone have left there is no leak.
    for namespace in (NAMESPACE, CHURN):
        status, answer = churn.api.call('DELETE', f'/api/v1/namespaces/{namespace}/events')
        assert status == 200, answer
    time.sleep(5)
    return figures.take()


def spread(seconds):
    ordered = sorted(seconds) or [0]
    pick = lambda share: round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)
    return dict(p50=pick(0.5), p99=pick(0.99), most=round(ordered[-1], 2))


def say(text):
    print(f'{time.strftime("%H:%M:%S")} {text}', file=sys.stderr, flush=True)


def report(result):
    print(f'{result["pods"]} idle pods ready after {result["up_s"]} s; {result["idle_cores"]} cores while idle; gone after {result["down_s"]} s')
    print(f'{result["cycles"]} pods created and deleted, ready after {result["start_s"]} s')
    for role, kills in result['kills'].items():
        print(f'{role} killed {kills} times, there again after {result["back_s"][role]} s')
    print(f'load: {result["load"]}')
    before, middle, end = result['figures']
    print('| what | before | after half | at the end |\n|---|---|---|---|')
    for what in before:
        print(f'| {what.replace("_", " ")} | {before[what]} | {middle[what]} | {end[what]} |')
    for problem in [*result['problems'], *(f'left behind: {l}' for l in result['left'])]:
        print(f'PROBLEM: {problem}')


if __name__ == '__main__':
    main()
