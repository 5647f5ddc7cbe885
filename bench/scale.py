#!/usr/bin/env python3
"""The controller with 5,000 services, 100,000 endpoints and 2,000 subscribed streams.

Builds and runs `crates/weft-control/examples/scale`: one process is the Kubernetes API and all subscribers (each with a TLS
connection of its own), the controller is another, whose memory is measured. Needs Python 3 and cargo only.

    python3 bench/scale.py [--rate 500] [--seconds 30] [--json FILE]
"""
import argparse, json, os, pathlib, resource, subprocess, sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BOUNDS = [
    # what, where in the figures, must, aim, unit
    ('controller memory, peak', ('memory_mb', 'peak'), 600, 400, 'MB'),
    ('one change to all subscribers, p99', ('one_change_ms', 'p99'), 200, 100, 'ms'),
    ('streams that are wrong after the changes', ('changes', 'streams_wrong'), 0, 0, ''),
    ('streams that ended during the changes', ('changes', 'streams_ended'), 0, 0, ''),
    ('reconnect of all streams', ('reconnect_ms',), 10_000, 5_000, 'ms'),
    ('cold start to the first answer', ('cold_start_ms',), 5_000, 1_000, 'ms'),
]


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in [('services', 5000), ('endpoints', 20), ('streams', 2000), ('watched', 100), ('changes', 200),
                          ('rate', 100), ('seconds', 120)]:
        args.add_argument(f'--{name}', type=int, default=default)
    args.add_argument('--bin', help='the program, if it is built')
    args.add_argument('--json', help='keep the figures here')
    args = args.parse_args()

    program = args.bin
    if program is None:
        subprocess.run(['cargo', 'build', '--release', '-p', 'weft-control', '--example', 'scale'], cwd=ROOT, check=True)
        target = pathlib.Path(os.environ.get('CARGO_TARGET_DIR', ROOT / 'target'))
        program = target / 'release' / 'examples' / 'scale'
    # A socket at either end of every stream, and some to spare.
    wanted = 4 * args.streams + 1000
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    options = ['services', 'endpoints', 'streams', 'watched', 'changes', 'rate', 'seconds']
    command = [str(program), 'run'] + [part for name in options for part in (f'--{name}', str(getattr(args, name)))]
    figures = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(figures, indent=1) + '\n')

    print('| measure | figure | must | aim |\n|---|---|---|---|')
    over = 0
    for what, path, must, aim, unit in BOUNDS:
        value = figures
        for key in path:
            value = value[key]
        over += value > must
        print(f'| {what} | {value:,} {unit} | ≤ {must:,} | ≤ {aim:,} |')
    return 1 if over else 0


if __name__ == '__main__':
    sys.exit(main())
