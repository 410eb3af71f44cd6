#!/usr/bin/env python3
"""Mount file systems one after another on images or stores under BACKING, run workloads.py on each in alternation,
and print one table: medians, and sumfs as a ratio to each of the others. Needs root, fio, btrfs-progs.

usage: compare.py [--fs sumfs,btrfs,ceiling] [--bin PATH_OF_SUMFS] [--opts MOUNT_OPTIONS] [--backing DIR] [--rounds N]
                  [--only buffered,direct,stream,loop,meta] [--secs N] [--size MiB] [--files N] [--json OUT] [--keep DIR]
--keep stores the ratios with date, machine and command as a JSON file in DIR and prints how they changed since the last one there.
Rates differ from machine to machine and hour to hour; the ratios of one run are what counts.
"""
import argparse, json, os, shutil, statistics, subprocess, sys, tempfile, time
HERE = os.path.dirname(os.path.abspath(__file__))

def sh(*a, check=True, **k): return subprocess.run(a, check=check, capture_output=True, text=True, **k)

class Target:
    def __init__(self, name, o):
        self.name, self.o, self.proc = name, o, None
        self.dir = tempfile.mkdtemp(prefix=f"cmp-{name}-", dir=o.backing); self.mnt = self.dir + "/mnt"; os.mkdir(self.mnt)
    def image(self):
        img = self.dir + "/img"; sh("truncate", "-s", self.o.image, img); return img
    def up(self):
        n, m = self.name, self.mnt
        if n in ("btrfs", "ext4", "xfs"):
            img = self.image(); sh(f"mkfs.{n}", *{"btrfs": ["-q", "-f"], "xfs": ["-q", "-f"], "ext4": ["-q", "-F"]}[n], img); sh("mount", "-o", "loop", img, m)
        elif n == "tmpfs": sh("mount", "-t", "tmpfs", "x", m)
        elif n == "ceiling":
            b = os.environ["CEILING"]  # an empty in-memory FUSE file system, built elsewhere
            self.proc = subprocess.Popen([b, m, "wb", "noopen", "bdi", "clone", "n=2"], stderr=subprocess.DEVNULL)
        elif n == "redoxfs":
            img = self.image(); sh("redoxfs-mkfs", img); sh("redoxfs", img, m)
        elif n == "sumfs":
            s = self.dir + "/store"; sh(self.o.bin, "mkfs", s, "--size", self.o.image)
            with open(self.dir + "/mount.log", "w") as log:  # a file, not a pipe: the daemon must not be able to hold us up
                if subprocess.run([self.o.bin, "mount", s, m, *(["-o", self.o.opts] if self.o.opts else [])], stdout=log, stderr=log).returncode:
                    sys.exit("sumfs mount: " + open(self.dir + "/mount.log").read())
        else: sys.exit(f"unknown file system {n}")
        for _ in range(100):
            if os.path.ismount(m): return
            time.sleep(.05)
        sys.exit(f"{n}: did not mount")
    def down(self):
        if self.name == "sumfs": sh(self.o.bin, "umount", self.mnt, check=False)
        if os.path.ismount(self.mnt): sh("umount", self.mnt, check=False)
        if self.proc: self.proc.wait(10)
        shutil.rmtree(self.dir, ignore_errors=True)

ap = argparse.ArgumentParser(); a = ap.add_argument
a("--fs", default="sumfs,btrfs,ceiling"); a("--bin", default="target/release/sumfs"); a("--opts", default=""); a("--backing", default="/dev/shm")
a("--image", default="6G"); a("--rounds", type=int, default=3); a("--only", default="buffered,direct,stream,loop,meta")
a("--secs", default="3"); a("--size", default="1024"); a("--files", default="10000"); a("--json"); a("--keep")
o = ap.parse_args(); names = o.fs.split(","); runs = {n: [] for n in names}
for r in range(o.rounds):
    for n in names if r % 2 == 0 else reversed(names):
        t = Target(n, o)
        try:
            t.up()
            p = sh(sys.executable, HERE + "/workloads.py", t.mnt, "--only", o.only, "--secs", o.secs, "--size", o.size, "--files", o.files, check=False)
            runs[n].append(json.loads(p.stdout) if p.returncode == 0 else {"run": {"error": p.stderr[-200:]}})
        finally: t.down()
        print(f"# round {r + 1}: {n} done", file=sys.stderr)
keys = []
for n in names:
    for x in runs[n]: keys += [k for k in x if k not in keys]
def med(n, k):
    v = [x[k].get("iops", x[k].get("s")) for x in runs[n] if k in x and "error" not in x[k]]
    return statistics.median(v) if v else None
first, rest = names[0], names[1:]
print("| workload | " + " | ".join(names) + " | " + " | ".join(f"{first}/{n}" for n in rest) + " |"); print("|---" * (1 + len(names) + len(rest)) + "|")
prod = {n: [] for n in rest}; ratios = {}; rates = {}
for k in keys:
    m = {n: med(n, k) for n in names}; rates[k] = m; row = [("-" if m[n] is None else f"{m[n]:.0f}" if m[n] > 20 else f"{m[n]:.2f}") for n in names]
    for n in rest:
        if m[first] and m[n] and not k.endswith("_s"): q = m[first] / m[n]; prod[n].append(q); ratios.setdefault(k, {})[n] = round(q, 3); row.append(f"{q:.2f}")
        else: row.append("-")
    print(f"| {k} | " + " | ".join(row) + " |")
for n in rest:
    if prod[n]: print(f"{first}/{n}: geometric mean {statistics.geometric_mean(prod[n]):.2f} over {len(prod[n])} workloads, least {min(prod[n]):.2f}")
if o.json: json.dump(runs, open(o.json, "w"))

def machine():
    cpu = next((l.split(": ")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), "unknown")
    fs = sh("df", "--output=fstype", o.backing).stdout.split()[-1]
    return f"Linux {os.uname().release}, {os.cpu_count()} x {cpu}, backing on {fs}"

def show_change(old, new):
    print(f"\nChange of the ratios since {old['date']}")
    for k in ("machine", "command"):
        if old[k] != new[k]: print(f"  another {k} then: {old[k]}\n  now: {new[k]}")
    print("| workload | against | then | now | now/then |\n|---|---|---|---|---|")
    changes = {}
    for k, per in new["ratios"].items():
        for n, now in per.items():
            then = old["ratios"].get(k, {}).get(n)
            if then and now: changes.setdefault(n, []).append(now / then); print(f"| {k} | {n} | {then:.2f} | {now:.2f} | {now / then:.2f} |")
    for n, c in changes.items():
        print(f"against {n}: geometric mean of the changes {statistics.geometric_mean(c):.2f} over {len(c)} workloads, least {min(c):.2f}, most {max(c):.2f}")
    gone = [k for k in old["ratios"] if k not in new["ratios"]]
    if gone: print("not measured now: " + ", ".join(gone))

if o.keep:
    os.makedirs(o.keep, exist_ok=True)
    new = {"date": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()), "machine": machine(), "command": " ".join(["compare.py", *sys.argv[1:]]),
           "rounds": o.rounds, "means": {n: round(statistics.geometric_mean(v), 3) for n, v in prod.items() if v}, "ratios": ratios, "rates": rates}
    kept = sorted(f for f in os.listdir(o.keep) if f.startswith("compare-") and f.endswith(".json"))
    path = os.path.join(o.keep, time.strftime("compare-%Y%m%d-%H%M%S.json", time.gmtime()))
    with open(path, "w") as f: json.dump(new, f, indent=1)
    print(f"\n{new['date']}, {new['machine']}\n{new['command']}\nstored in {path}")
    if kept: show_change(json.load(open(os.path.join(o.keep, kept[-1]))), new)
    else: print("nothing to compare with: this is the first one here")
