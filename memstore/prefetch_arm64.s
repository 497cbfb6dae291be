#include "textflag.h"

// func prefetch(x *cell)
TEXT ·prefetch(SB), NOSPLIT, $0-8
	MOVD x+0(FP), R0
	PRFM (R0), PSTL1KEEP
	RET
