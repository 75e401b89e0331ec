"""Puts both sides of an arrival together in one worker."""

from ft_collectives.process_group.elastic import ElasticGroup
from recoverrun.worker.arrival import arrived_state
from recoverrun.worker.arrival.learned import Gives, PlaceParts, TakesSnapshots
from recoverrun.worker.arrival.newcomer import Newcomer
from recoverrun.worker.arrival.prologue_record import PrologueRecord
from recoverrun.worker.arrival.survivor import Survivor
from recoverrun.worker.arrival.winding import Winding
from recoverrun.worker.groups.prologue import Prologue


def serve(parts: PlaceParts, snapshots: TakesSnapshots | None) -> tuple[Prologue, Gives]:
    """Let lost ranks come back, and take a place if this process is to. Returned is also what gives
    others their places.
    """
    worker = parts.worker
    record = PrologueRecord(worker.runtime)
    ElasticGroup.record = record
    survivor = Survivor(parts, record, snapshots)
    if not worker.env.birth:
        parts.driver.return_by(survivor)
        return Prologue(), survivor
    newcomer = Newcomer(parts, survivor, record, snapshots, puts=arrived_state.put)
    parts.driver.return_by(newcomer)
    winding = Winding(worker.runtime, newcomer.outermost, newcomer, newcomer.passed)
    worker.runtime.winds = newcomer.winding = winding
    return Prologue(newcomer.store, record.objects), survivor
