#include "textflag.h"

// func prefetch(x *cell)
TEXT ·prefetch(SB), NOSPLIT, $0-8
	MOVQ x+0(FP), AX
	BYTE $0x0f; BYTE $0x0d; BYTE $0x08 // PREFETCHW (AX), which the assembler does not know
	RET
