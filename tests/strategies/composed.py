"""The methods by themselves, put together by hand of the pieces that a test is about."""

from optdyn.strategies import asynchronous as slots_of
from optdyn.strategies import base, dynamic_batch, local
from optdyn.strategies.daso import DASO
from optdyn.strategies.sync import sync as plain


def sync(loss, optimizer):
    return plain(base.whole(loss), base.together(optimizer))


def asynchronous(loss, optimizer, slots, fresh=()):
    return slots_of.asynchronous(base.whole(loss), base.together(optimizer), slots, fresh)


def daso(loss, optimizer, transfer_dtype="", blocking_dtype="", senders=None):
    inner = plain(base.averaged(base.whole(loss), "data"), base.together(optimizer))
    method = DASO(transfer_dtype=transfer_dtype, blocking_dtype=blocking_dtype)
    return method.mix(inner, senders)


def by_shares(losses, optimizer, micro_batch, weights="share"):
    gradient = dynamic_batch.shares(losses, micro_batch, weights)
    return plain(gradient, base.together(optimizer))


def by_groups(problem, optimizer, groups, shared=False):
    return plain(local.local(problem, groups, shared), base.by_block(optimizer))
