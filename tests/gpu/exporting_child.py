"""A process that owns memory on GPU 0 and passes its handle on: CUDA opens no handle in the process that made it.

Prints the handle in base64, then for each line on stdin the sum of its bytes; ends with stdin.
"""

from __future__ import annotations

import base64
import sys

import numpy as np
import tritonclient.utils.cuda_shared_memory as client_memory


def main(size: int) -> None:
    region = client_memory.create_shared_memory_region("exported", size, 0)
    client_memory.set_shared_memory_region(region, [np.arange(size, dtype=np.uint8)])
    handle = client_memory.get_raw_handle(region)
    assert len(base64.b64decode(handle)) == 64
    print(handle.decode(), flush=True)
    for _ in sys.stdin:
        contents = client_memory.get_contents_as_numpy(region, np.uint8, [size])
        print(int(contents.astype(np.int64).sum()), flush=True)
    client_memory.destroy_shared_memory_region(region)


main(int(sys.argv[1]))
