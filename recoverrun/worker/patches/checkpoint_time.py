"""The time of saving and loading checkpoints, told apart from the script's other work."""

from types import ModuleType
from typing import Any

from recoverrun.worker.patches.monkeypatch import Wrapper, replace
from recoverrun.worker.rewriting.post_import import PostImportHook
from rendezvous.protocol.progress_page import ProgressWriter

CALLS = {
    "torch.serialization": ("save", "load"),
    "torch.distributed.checkpoint.state_dict_saver": ("save", "save_state_dict", "async_save"),
    "torch.distributed.checkpoint.state_dict_loader": ("load", "load_state_dict"),
    "safetensors.torch": ("save_file", "save_model", "load_file", "load_model"),
}
"""By module: functions that write or read a checkpoint. One within another counts once."""


def watches(progress: ProgressWriter) -> dict[str, PostImportHook]:
    """The hooks for these modules when they are imported."""

    def watch(module: ModuleType) -> None:
        for name in CALLS[module.__name__]:
            if name in vars(module):
                replace(module, name, timed(progress))

    return dict.fromkeys(CALLS, watch)


def timed(progress: ProgressWriter) -> Wrapper:
    """Counts the time of a call as that of a checkpoint."""

    def wrap(original: Any) -> Any:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with progress.checkpoint():
                return original(*args, **kwargs)

        return wrapper

    return wrap
