"""What torch's allocator held, from its own record.

`snapshot` follows the events of a memory snapshot: the peak, what was live at it by owner, and fragmentation.
"""
