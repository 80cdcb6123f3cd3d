// One kernel per element type, by the macro ENTRY(T, suffix, N) of the file that includes this, for small groups and for all: the sum over the ranks is
// the switch's affair.
ENTRY(bf16, , 8)
ENTRY(f16, , 8)
ENTRY(f32, , 8)
ENTRY(bf16, _any, 72)
ENTRY(f16, _any, 72)
ENTRY(f32, _any, 72)
