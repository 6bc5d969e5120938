"""Readers: public trace files → Trace, one module per format, by the name that the command line and the page use."""

from sim.readers import azure, bailian, mooncake
from sim.readers.source import MAX_BYTES, ReaderError

__all__ = ["MAX_BYTES", "READERS", "ReaderError"]

READERS = {"azure": azure.read, "mooncake": mooncake.read, "bailian": bailian.read}
