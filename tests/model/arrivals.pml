/* How the ranks of a host meet in shared memory (worker_runtime/backends/cpu), for spin to look at in every order of
 * steps.
 *
 * Parts have the names of the functions that they stand for, most of them in arrivals.cpp. A step here is what others
 * can see at once; several looks that come one after another are one where what they look at only ever changes one way,
 * so that the last of them, or the first, decides. Memory is sequentially consistent, as the code asks for wherever two
 * ranks look at each other's words in turn. Left out: spinning and yielding (a wait that does not sleep yet), several
 * hosts, and what the data is: each piece carries the number of the phase, or of the call, that it belongs to.
 *
 * Checked: everybody ends, whoever dies, aborts or is late (no invalid end state: no wake-up is lost, nobody waits for
 * one who is gone); what is read belongs to the phase of the reader; and nobody takes a call for complete in which any
 * rank has read memory that its owner was writing to again.
 *
 * CALLS calls; LATE ranks may be late, rank ABORTS may abort and rank DIES be killed, each at any time.
 * The other names behind #ifdef are mistakes, each of which has to be found: CMakeLists.txt.
 */
#ifndef CALLS
#define CALLS 3
#endif
#ifndef LATE
#define LATE 0
#endif
#if defined(ABORTS) || defined(DIES) || LATE > 0
#define FAULTS 1
#else
#define FAULTS 0
#endif

#define N 3
#define HERE 0
#define ABORTED 1
#define GAVE_UP 2
#define SPOILT 0 /* memory that its user writes to: the input of no call */

#define UNKNOWN 0
#define SMALL 1    /* SmallCalls: one phase, the data beside the post */
#define IN_PLACE 2 /* InPlace: others read a rank's memory between two phases */
#define STAGED 3   /* Staged: a phase for the posts, one for the data */

#ifdef ALL_IN_PLACE
#define KINDS kind[call] = IN_PLACE
#else
#define KINDS if :: kind[call] = SMALL :: kind[call] = IN_PLACE :: kind[call] = STAGED fi
#endif

#ifdef ONE_LINE
#define PLACE(p) 0
#else
#define PLACE(p) ((p) % 2)
#endif

typedef Line { byte arrived; byte data }; /* data: the post, the bytes beside it, or the half of the staging */
typedef RankControl { Line line[2]; byte sleepers; byte presence };

RankControl control[N];
byte listens[N];        /* has read the futex of rank listens - 1, and means to sleep on it */
bit changed[N];            /* that futex has another value than was read */
bit asleep[N];          /* in futex_wait() */
byte lost;              /* whose process is dead, and one more; 0 of none */
bit ended[N];           /* RankPresence::ended_ of each, for the lost one */
bit interrupted[N];
bit given_up[N];        /* GroupStatus::has_failed() */
byte memory[N];         /* registered memory: the call that it is the input of */
bit misread[N];         /* a rank has read memory of another call, or spoilt */
byte kind[CALLS];
byte late_ones;         /* ranks that may still find their deadline passed */

#define HAS_ARRIVED(r) (control[r].line[PLACE(phase)].arrived >= phase)
#define IS_AHEAD(r) (control[r].line[PLACE(phase + 1)].arrived > phase)
#define IS_GONE(r) (control[r].presence != HERE || (lost == r + 1 && ended[me]))

/* A futex is known by the ranks that have read it and mean to sleep on it. */
#define WAKE_FOR(i, r) if :: listens[i] == r + 1 -> changed[i] = 1; asleep[i] = 0 :: else fi
#define WAKE(r) WAKE_FOR(0, r); WAKE_FOR(1, r); WAKE_FOR(2, r)

inline wake_all() {
  d_step {
    if :: control[0].sleepers != 0 -> WAKE(0) :: else fi;
    if :: control[1].sleepers != 0 -> WAKE(1) :: else fi;
    if :: control[2].sleepers != 0 -> WAKE(2) :: else fi
  }
}

inline leave(who, how) {
  if
  :: atomic { control[who].presence == HERE -> control[who].presence = how };
#ifndef LEAVES_IN_SILENCE
    wake_all()
#endif
  :: control[who].presence != HERE
  fi
}

inline interrupt(who) {
  interrupted[who] = 1;
#ifndef LEAVES_IN_SILENCE
  wake_all()
#endif
}

/* Ending::give_up() */
inline give_up(who, how) {
  if
  :: atomic { !given_up[who] -> given_up[who] = 1 };
    leave(who, how);
    interrupt(who)
  :: given_up[who] ->
#ifdef GIVES_UP_WITHOUT_A_WORD
    skip
#else
    leave(who, how)
#endif
  fi
}

/* Phases::arrive(): Arrivals::gave_up_ahead(), Arrivals::arrive(). What data belongs to the phase comes with the
 * post. */
inline arrive() {
  d_step {
#if FAULTS > 0 && !defined(NOBODY_LOOKS_AHEAD)
    if
    :: control[0].presence != HERE && IS_AHEAD(0) -> failed = 1
    :: control[1].presence != HERE && IS_AHEAD(1) -> failed = 1
    :: control[2].presence != HERE && IS_AHEAD(2) -> failed = 1
    :: else ->
#else
    if
    :: true ->
#endif
      phase++;
      control[me].line[PLACE(phase)].data = phase
    fi
  };
  if
  :: failed
  :: !failed ->
#ifdef LOOKS_FOR_SLEEPERS_BEFORE_IT_ARRIVES
    d_step { seen = control[me].sleepers };
    control[me].line[PLACE(phase)].arrived = phase;
    d_step { if :: seen != 0 -> WAKE(me) :: else fi; seen = 0 }
#else
    control[me].line[PLACE(phase)].arrived = phase;
    d_step { if :: control[me].sleepers != 0 -> WAKE(me) :: else fi }
#endif
  fi
}

/* Whether the wait for `awaited` is over: by its arrival, or by Arrivals::failure(). */
inline look() {
  if
  :: HAS_ARRIVED(awaited) -> seen = 1
#if FAULTS > 0
  :: else ->
    if
    :: IS_GONE(0) && !HAS_ARRIVED(0) -> failed = 1
    :: IS_GONE(1) && !HAS_ARRIVED(1) -> failed = 1
    :: IS_GONE(2) && !HAS_ARRIVED(2) -> failed = 1
    :: interrupted[me] || late -> failed = 1
    :: else
    fi;
    seen = failed
#else
  :: else
#endif
  fi
}

inline hear() {
  listens[me] = awaited + 1;
  changed[me] = 0
}

inline futex_wait() {
  if
  :: atomic { !changed[me] -> asleep[me] = 1 };
    if
    :: !asleep[me]
#if LATE > 0
    :: atomic { asleep[me] && late_ones > 0 -> late_ones--; late = 1; asleep[me] = 0 } /* the deadline */
#endif
    fi
  :: changed[me]
  fi
}

#define IS_UP control[awaited].sleepers--; listens[me] = 0; changed[me] = 0; seen = 0; late = 0

/* Arrivals::wait(): the next one that has not arrived is waited for by sleep(), which says so first. */
inline wait() {
  do
  :: atomic {
      do
      :: awaited < N && HAS_ARRIVED(awaited) -> awaited++
      :: else -> break
      od;
      if
      :: failed || awaited == N -> awaited = 0; break
      :: else
      fi;
#ifndef SLEEPS_WITHOUT_A_SECOND_LOOK
      control[awaited].sleepers++
#endif
    };
#ifdef SLEEPS_WITHOUT_A_SECOND_LOOK
    atomic { hear(); look() };
    control[awaited].sleepers++;
    if :: !seen -> futex_wait() :: else fi;
    atomic { IS_UP }
#else
    do
#ifdef HEARS_AFTER_IT_LOOKED
    :: atomic { look(); if :: seen -> IS_UP; break :: else fi };
      atomic { hear() };
#else
    :: atomic { hear() };
      atomic { look(); if :: seen -> IS_UP; break :: else fi };
#endif
      futex_wait()
    od
#endif
  od
}

inline meet() {
  if
  :: !failed -> arrive(); wait()
  :: failed
  fi
}

/* What belongs to this phase, of all ranks. Whatever is overwritten stays so: the last look decides. */
inline read_lines() {
  d_step {
    assert(failed || control[0].line[PLACE(phase)].data == phase);
    assert(failed || control[1].line[PLACE(phase)].data == phase);
    assert(failed || control[2].line[PLACE(phase)].data == phase)
  }
}

inline read_memory() {
  d_step {
    if
    :: !failed && (memory[0] != call + 1 || memory[1] != call + 1 || memory[2] != call + 1) -> misread[me] = 1
    :: else
    fi
  }
}

proctype Rank(byte me) {
  byte phase, call, awaited, seen;
  bit failed, late;
  {
    do
    :: atomic {
        call < CALLS && !failed && !given_up[me] -> /* Group::require_usable() */
        memory[me] = call + 1;
        if
        :: kind[call] == UNKNOWN -> KINDS
        :: else
        fi
      };
      meet();
      read_lines();
      if
      :: kind[call] == IN_PLACE ->
        read_memory();
        meet();
        assert(failed || (!misread[0] && !misread[1] && !misread[2]))
      :: kind[call] == STAGED ->
        meet();
        read_lines()
      :: else
      fi;
      call++
    :: else -> break
    od;
    if
    :: failed ->
#ifdef SPOILS_BEFORE_IT_LEAVES
      memory[me] = SPOILT; give_up(me, GAVE_UP)
#else
      give_up(me, GAVE_UP); memory[me] = SPOILT
#endif
    :: else
    fi
  } unless {
    lost == me + 1
  }
}

/* abort() of one rank, from another of its threads. */
proctype Abort(byte who) {
  { give_up(who, ABORTED) } unless { lost == who + 1 }
}

/* The end of one process, and PeerWatch in the others, which calls RankPresence::lose(). */
proctype Kill(byte who) {
  lost = who + 1
}

proctype Watch(byte me) {
  lost != 0 && lost != me + 1;
  ended[me] = 1;
  wake_all()
}

init {
  atomic {
    late_ones = LATE;
    run Rank(0);
    run Rank(1);
    run Rank(2);
#ifdef ABORTS
    run Abort(ABORTS);
#endif
#ifdef DIES
    run Watch((DIES + 1) % N);
    run Watch((DIES + 2) % N);
    run Kill(DIES);
#endif
  }
}
