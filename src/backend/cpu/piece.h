/* Long work goes in pieces, between which other work may go on. */
#ifndef TERSE_BACKEND_CPU_PIECE_H
#define TERSE_BACKEND_CPU_PIECE_H

/* Multiplications of a piece on each thread, about: some hundredths of a second. */
#define PIECE_MULTIPLICATIONS 0.5e9

#endif
