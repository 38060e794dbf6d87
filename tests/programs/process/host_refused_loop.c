/* Has argv[1] requests refused, a second's worth apart as the guard sees it only by chance; prints how many were. */
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **arguments)
{
    int refused = 0;
    for (int i = 0; i < (count > 1 ? atoi(arguments[1]) : 1); i++)
        refused += malloc((size_t)8 << 40) == NULL;
    printf("%d\n", refused);
    return 0;
}
