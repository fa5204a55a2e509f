package io.sealstone.function;

import java.nio.ByteBuffer;

/** The calls of an engine to its device. The native methods check every number and every length. */
final class EngineHost implements CallHost {
    @Override
    public synchronized native long read(int object, long offset, byte[] into, int start, int length);

    @Override
    public synchronized native long write(int object, long offset, byte[] from, int start, int length);

    @Override
    public synchronized native long append(int object, byte[] from, int start, int length);

    @Override
    public synchronized native long punch(int object, long offset, long length);

    @Override
    public synchronized native long length(int object);

    @Override
    public synchronized native long getAttribute(int object, int page, int number, byte[] into);

    @Override
    public synchronized native long setAttribute(int object, int page, int number, byte[] value);

    @Override
    public synchronized native long list(int object, long after, long[] into);

    @Override
    public synchronized native long create(int partition, long[] number);

    @Override
    public synchronized native long remove(int object);

    @Override
    public synchronized native long flush(int object);

    @Override
    public synchronized native long clear(int object, long offset, long length);

    @Override
    public synchronized native long createCollection(int collection, long[] number);

    @Override
    public synchronized native long removeCollection(int collection, int force);

    @Override
    public synchronized native long addMember(int collection, int object);

    @Override
    public synchronized native long removeMember(int collection, int object);

    @Override
    public synchronized native long isMember(int collection, int object);

    @Override
    public synchronized native long result(byte[] data, int start, int length);

    @Override
    public synchronized native long log(int level, byte[] text);

    @Override
    public synchronized native long progress(long done, long total);

    @Override
    public synchronized native boolean isCancelled();

    @Override
    public synchronized native long clock();

    @Override
    public synchronized native long openReader(int object, long offset, long length);

    @Override
    public synchronized native ByteBuffer readNext(long stream, long[] error);

    @Override
    public synchronized native long openWriter(int object, long offset);

    @Override
    public synchronized native long writeNext(long stream, byte[] from, int start, int length);

    @Override
    public synchronized native long closeStream(long stream, boolean isWriter);

    /** Returns the bytes of an entry of the JAR file, or null. */
    static native byte[] entry(String name);
}
