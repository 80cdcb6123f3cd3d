"""Names of element types are numpy's where numpy has them, and a name with two meanings is refused."""

import numpy as np
import symmem

for name in ["f4", "<f8", "i4", "u1", "int", "float", "float32"]:
    print(name, "is", symmem.empty(2, dtype=name).numpy().dtype == np.dtype(name))
x = symmem.empty(4, dtype="i8")
x[:] = np.arange(4) * 1000
print(x)
