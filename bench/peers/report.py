"""What every Python peer prints: one JSON line with its samples, shaped like those of bench/measure.ts."""
import json
import resource
import time
from importlib.metadata import version


class Timer:
    """Samples of wall time and CPU time of this process."""

    def __init__(self):
        self.samples = []

    def measure(self, work, warm_ups, iterations):
        for _ in range(warm_ups):
            work()
        for _ in range(iterations):
            cpu, start = time.process_time(), time.perf_counter()
            work()
            self.samples.append({"seconds": time.perf_counter() - start, "cpuSeconds": time.process_time() - cpu})


def print_report(samples, tokens, packages, **more):
    report = {
        "samples": samples,
        "tokens": tokens,
        "peakRssMb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "versions": {name: version(name) for name in packages},
        **more,
    }
    print(json.dumps(report), flush=True)
