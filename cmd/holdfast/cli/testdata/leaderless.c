// leaderless [-t] [-d] NAME [NAME...]: a process that works on after its first thread has ended, so that the system shows it
// as one that has ended. It writes its number to the file NAME, and then its name to the file "lines" again and again.
// -t: it ignores SIGTERM. -d: it is a daemon, in a session of its own and without its parent. Each further NAME is a
// process of the same kind that the one before starts.

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char **names;

static void begin(void);

// firstHasEnded says whether the first thread of this process shows as ended.
static int firstHasEnded(void) {
	char text[512] = "";
	int fd = open("/proc/self/stat", O_RDONLY);
	if (fd < 0 || read(fd, text, sizeof text - 1) < 0)
		exit(1);
	close(fd);
	char *end = strrchr(text, ')');
	return end && end[2] == 'Z';
}

static void *work(void *unused) {
	char line[64], name[64];
	(void)unused;
	while (!firstHasEnded())
		usleep(1000);
	if (names[1] && fork() == 0) {
		names++;
		begin();
	}
	snprintf(name, sizeof name, "%s.new", names[0]);
	FILE *f = fopen(name, "w");
	if (!f || fprintf(f, "%d\n", getpid()) < 0 || fclose(f) || rename(name, names[0]))
		exit(1);
	int lines = open("lines", O_WRONLY | O_APPEND | O_CREAT, 0600);
	int n = snprintf(line, sizeof line, "%s\n", names[0]);
	for (;;) {
		if (write(lines, line, n) != n)
			exit(1);
		usleep(5000);
	}
}

static void begin(void) {
	pthread_t thread;
	if (pthread_create(&thread, NULL, work, NULL))
		exit(1);
	pthread_exit(NULL);
}

int main(int argc, char **argv) {
	int option, daemon = 0;
	while ((option = getopt(argc, argv, "td")) != -1) {
		if (option == 't')
			signal(SIGTERM, SIG_IGN);
		else
			daemon = 1;
	}
	names = argv + optind;
	if (!names[0])
		return 64;
	if (daemon) {
		if (fork())
			return 0;
		setsid();
		if (fork())
			return 0;
	}
	begin();
	return 0;
}
