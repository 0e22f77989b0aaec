"""Workers that share the cores of one machine with the server that they send to, event by event.

    worker    w core-seconds of computing, then it queues for the server
    server    s seconds at one update after the other, in order of arrival; its worker reads

    dv/dt = min(1, C / k)      what each of the k that are at work gets done in a second

k are the workers that compute, and the server where somebody is there. A machine of C cores divides
them evenly among those at work (processor sharing). Memory bounds C likewise: where a core at work
moves b bytes a second and the memory B in all, C = min(cores, B / b).

With as many cores as workers, and one for the server, nobody is slowed, and what is left is the
server's queue. Without a server, s = 0, it is `arrivals.py` to the rounding of a sum. With one core
an update takes w + s, however many work.
"""

from collections import deque

import numpy as np

from optdyn.clock.arrivals import Queue, Work, rounding, services
from optdyn.clock.base import Timeline, from_arrivals
from optdyn.clock.service import Draw

SERVER = -1  # in the queue of who is done next, before all workers


def shared_cores(
    seed: int, law: Draw, work: Work, serving: np.ndarray | float, cores: float, steps: int
) -> Timeline:
    """The first `steps` updates of workers that all begin at second 0.

    `work` has what each computes, alone, which is multiplied by draws of `law`, those of
    `arrivals`. `serving`: s, or (steps,) of every update. `cores`: C, positive, or infinite. It
    takes O(log workers) an update. Longer runs begin with shorter ones.
    """
    groups = len(work.compute)
    each = [services(seed, law, work, steps, group) for group in range(groups)]
    served = np.broadcast_to(serving, steps).tolist()
    # v is a clock that all at work share, so it says who is done next, and not when.
    busy = Queue([(next(each[group]), group) for group in range(groups)], rounding(law))
    k, v, now, begun = groups, 0.0, 0.0, 0
    waiting = deque[int]()  # the first of them is being served
    worker, seconds = np.empty(steps, np.int32), np.empty(steps)
    t = 0
    while t < steps:
        done, group = busy.pop()
        now += (done - v) * max(1.0, k / cores)
        v = done
        k -= 1
        if group == SERVER:
            group = waiting.popleft()
            worker[t], seconds[t] = group, now
            t += 1
            busy.push((v + next(each[group]), group))
            k += 1
            idle = True
        else:
            idle = not waiting
            waiting.append(group)
        if idle and waiting and begun < steps:
            busy.push((v + served[begun], SERVER))
            k, begun = k + 1, begun + 1
    return from_arrivals(worker, seconds, groups)
