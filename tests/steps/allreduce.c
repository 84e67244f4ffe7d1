/* Each rank adds its number from 1 on; every rank writes the sum. With LEAVES it ends without MPI_Finalize. */
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv) {
  int rank, size, sum;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  int mine = rank + 1;
  MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  printf("%d of %d: %d\n", rank, size, sum);
#ifdef LEAVES
  fflush(stdout);
  MPI_Barrier(MPI_COMM_WORLD);
  sleep(1); /* the first that leaves may take the others with it: what they said has arrived by then */
  _exit(0);
#endif
  return MPI_Finalize();
}
