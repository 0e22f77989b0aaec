"""The methods by themselves, put together by hand of the pieces that a test is about."""

from optdyn import core
from optdyn.methods import asynchronous as slots_of
from optdyn.methods import dynamic_batch, local
from optdyn.methods.daso import DASO
from optdyn.methods.messages import SIMULATED
from optdyn.methods.sync import sync as plain


def sync(loss, optimizer):
    return plain(core.full_gradient(loss), core.single_optimizer(optimizer))


def asynchronous(loss, optimizer, slots, fresh=()):
    return slots_of.asynchronous(
        core.full_gradient(loss), core.single_optimizer(optimizer), slots, fresh
    )


def daso(loss, optimizer, transfer_dtype="", blocking_dtype="", collectives=SIMULATED):
    inner = plain(
        core.averaged_gradient(core.full_gradient(loss), "data"), core.single_optimizer(optimizer)
    )
    method = DASO(transfer_dtype=transfer_dtype, blocking_dtype=blocking_dtype)
    return method.mix(inner, collectives)


def by_shares(losses, optimizer, micro_batch, weights="share"):
    gradient = dynamic_batch.weighted_gradient(
        lambda *args: (losses(*args), {}), micro_batch, weights
    )
    return plain(gradient, core.single_optimizer(optimizer))


def by_groups(problem, optimizer, groups, shared=False):
    return plain(local.local(problem, groups, shared), core.per_block_optimizer(optimizer))
