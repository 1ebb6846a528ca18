"""What a fitted calibrator computes: frozen values with one pure function on arrays of any library.

`base.py` defines a map, `arrays.py` has the functions that several maps share, and `guard.py` keeps
predictions. A new map is one class in one of the other modules, and a name in `files/encoding.py`.
"""
