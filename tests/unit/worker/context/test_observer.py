"""Iterators over loaders are noted as an iteration begins: the body may make others."""

from typing import Any

from torch.utils.data import DistributedSampler

from recoverrun.worker.context.observer import TorchObserver
from recoverrun.worker.data.source import RankAware

OWN = frozenset({__name__})


class Feed(RankAware):
    """An iterator over a loader."""


class Trainer:
    def __init__(self, **iterator_lists: Any) -> None:
        self.__dict__.update(iterator_lists)


def looking_at(**visible: Any) -> TorchObserver:
    observer = TorchObserver()
    observer.attributes(visible, OWN, [])
    return observer


def test_an_iterator_in_an_attribute_or_a_dict_is_noted_by_reference() -> None:
    one, two = Feed(), Feed()
    trainer = Trainer(it=one, name="x")

    noted = looking_at(trainer=trainer, more={"a": two}).bulk({})

    assert sorted(map(id, noted.values())) == sorted(map(id, (one, two)))


def test_a_list_of_iterators_is_noted_with_what_it_holds_then() -> None:
    one, two = Feed(), Feed()
    iterator_lists, others = [one], [two]
    observer = looking_at(
        iterator_lists=iterator_lists,
        trainer=Trainer(its=others),
        again=iterator_lists,
        rows=[1, 2],
    )

    noted = observer.iterator_lists()
    iterator_lists[0] = two

    assert sorted(map(id, (live for live, _ in noted))) == sorted(map(id, (iterator_lists, others)))
    assert {id(live): then for live, then in noted}[id(iterator_lists)] == [one]


def test_a_sampler_of_torch_s_is_put_back_by_nobody_but_for_its_rank() -> None:
    mine, sampler = Trainer(), DistributedSampler(range(6), num_replicas=2, rank=1)

    assert looking_at(mine=mine, sampler=sampler).seen() & {id(mine), id(sampler)} == {id(mine)}
